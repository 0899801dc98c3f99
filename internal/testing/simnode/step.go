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

// names are those of what belongs to a lock, as far as scripts have had them.
type names struct{ fence, queue string }

// observed executes a script, and tells Observe what it did to each of its locks.
func (n *Node) observed(cmd drivers.Command, keys []string, run func() drivers.Reply) drivers.Reply {
	if n.Observe == nil {
		return run()
	}
	steps := wire.Steps(cmd)
	n.learn(steps, keys)
	now := map[string]State{} // by lock, as the steps so far have left it
	for _, s := range steps {
		now[s.Lock] = n.state(s.Lock)
	}
	n.changes = map[string][]State{}
	reply := run()
	changes := n.changes
	n.changes = nil
	slots := map[string]int64{} // by counter, because locks of one call may share it
	for _, s := range steps {
		fence := n.lines[s.Lock].fence
		before := now[s.Lock]
		before.Slot = max(before.Slot, slots[fence])
		after := before
		if !s.Joined {
			after = n.state(s.Lock)
		} else if c := changes[s.Lock]; len(c) > 0 && caused(s, before, c[0]) {
			after, changes[s.Lock] = c[0], c[1:]
		}
		after.Slot = n.counter(fence)
		now[s.Lock], slots[fence] = after, after.Slot
		n.Observe(Step{s.Script, s.Lock, s.Token, fence, before, after})
	}
	return reply
}

// caused reports whether a part of a joined command has changed its lock from before to after.
func caused(s wire.Step, before, after State) bool {
	if s.Script == "release" {
		return after.Owner == "" && s.Token == before.Owner
	}
	return after.Owner != "" && s.Token == after.Owner
}

// learn remembers the keys of the counter and of the queue that belong to each lock of a call. A joined call has as
// many counters as locks to acquire, in the same order, and a call for one lock has one of each at most.
func (n *Node) learn(steps []wire.Step, keys []string) {
	if n.lines == nil {
		n.lines = map[string]names{}
	}
	var fences []string
	queue := ""
	for _, k := range keys {
		switch {
		case strings.Contains(k, ":lockqueue"):
			queue = k
		case strings.HasSuffix(k, "fence"):
			fences = append(fences, k)
		}
	}
	for i, s := range steps {
		known := n.lines[s.Lock]
		if i < len(fences) {
			known.fence = fences[i]
		}
		n.lines[s.Lock] = names{known.fence, cmp.Or(queue, known.queue)}
	}
}

func (n *Node) state(lock string) State {
	of := n.lines[lock]
	e, _ := n.get(lock)
	_, waits := n.get(of.queue)
	s := State{Owner: e.value, Expires: e.expires, Waits: waits, Slot: n.counter(of.fence)}
	if v, ours := wire.ParseValue(e.value); ours {
		s.Owner, s.Fence, s.Marked = v.Owner, v.Counter, v.Marked
	}
	return s
}
