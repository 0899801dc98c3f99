package simnode

import (
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// Step is the execution of one script, or of one command in a joined call, with what it did to its lock.
type Step struct {
	Script        string
	Lock          string // the lock's key on the node
	Owner         string // who called: the owner's token, or the waiter
	Before, After State
}

// State is that of one lock.
type State struct {
	Owner   string    // the owner's token, or a value that is not that of a lock; "": free
	Expires time.Time // by the node's clock
	Fence   int64     // the counter in the lock's value; 0: the value has none
}

// observed executes a script, and tells Observe what it did.
func (n *Node) observed(script string, l line, args []string, run func(line, []string) drivers.Reply) drivers.Reply {
	if n.Observe == nil {
		return run(l, args)
	}
	before := n.state(l.lock)
	reply := run(l, args)
	n.Observe(Step{Script: script, Lock: l.lock, Owner: wire.Token(args[0]), Before: before, After: n.state(l.lock)})
	return reply
}

func (n *Node) state(lock string) State {
	e, _ := n.get(lock)
	s := State{Owner: e.value, Expires: e.expires}
	if p, ours := parts(e.value); ours {
		s.Owner, s.Fence = p.owner, p.counter
	}
	return s
}
