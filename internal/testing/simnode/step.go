package simnode

import (
	"cmp"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// Step is the execution of one script, or of one command in a joined call, with what it did to its lock.
type Step struct {
	Script        string
	Lock          string // the lock's key on the node
	Owner         string // who called: the owner's token, or the waiter
	Counter       string // the key of the counter of the lock's slot; empty if no script has had it yet
	Before, After State
}

// State is that of one lock.
type State struct {
	Owner   string    // the owner's token, or a value that is not that of a lock; "": free
	Expires time.Time // by the node's clock
	Fence   int64     // the counter in the lock's value; 0: the value has none
	Marked  bool      // the value says that somebody waits
	Waits   bool      // somebody is in the lock's queue, as far as a script has had the queue
	Slot    int64     // the counter of the lock's slot; 0: there is none
}

// observed executes a script, and tells Observe what it did.
func (n *Node) observed(script string, l line, args []string, run func(line, []string) drivers.Reply) drivers.Reply {
	if n.Observe == nil {
		return run(l, args)
	}
	owner := args[0]
	if strings.HasPrefix(owner, "|") {
		owner, _, _ = split(owner)
	}
	seen := n.seen(l)
	before := seen.state()
	reply := run(l, args)
	n.Observe(Step{script, l.lock, owner, seen.fence, before, seen.state()})
	return reply
}

// seen adds to l the names of the counter and the queue that earlier scripts have had for the same lock.
func (n *Node) seen(l line) line {
	if n.lines == nil {
		n.lines = map[string]line{}
	}
	known := n.lines[l.lock]
	l.fence, l.queue = cmp.Or(l.fence, known.fence), cmp.Or(l.queue, known.queue)
	n.lines[l.lock] = l
	return l
}

func (l line) state() State {
	e, _ := l.get(l.lock)
	s := State{Owner: e.value, Expires: e.expires, Waits: l.exists(l.queue), Slot: l.counter(l.fence)}
	if v, ours := wire.ParseValue(e.value); ours {
		s.Owner, s.Fence, s.Marked = v.Owner, v.Counter, v.Marked
	}
	return s
}
