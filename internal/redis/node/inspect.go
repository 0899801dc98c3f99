package node

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/redis/script"
)

// State is what a node knows of a lock: the Inspection that it may publish, and the owner.
type State struct {
	inspect.Inspection
	value string // the whole value of the lock; empty: nobody has it
	owner string // the owner's whole token, or another library's value
	node  int    // the number of the node in the owner's list; 0: the value is not that of a lock of this library
	group bool   // the lock is a group, and this is one of its entries
}

// OwnedBy reports whether the owner's token begins with prefix. It returns false if there is no owner. The owner of a
// lock that is kept after its release is its last owner.
func (s State) OwnedBy(prefix string) bool {
	return s.value != "" && strings.HasPrefix(s.owner, prefix)
}

// SameOwner reports whether two nodes have the lock for the same attempt.
func (s State) SameOwner(t State) bool {
	return s.value != "" && s.owner == t.owner && s.State == t.State
}

// SameServer reports whether two answers come from one server. They do if the owner's number is the same, because each
// node has a number of its own.
func (s State) SameServer(t State) bool { return s.SameOwner(t) && s.node != 0 && s.node == t.node }

// shown is how many bytes of an owner's token are shown. They are enough to tell owners apart, and too few to guess the
// rest.
const shown = 8

// StartInspect asks what the node knows of key.
func (n *Node) StartInspect(ready chan<- *Call, tag int, key string) *Call {
	c := &Call{}
	n.pipeline.Submit(c.of(n, ready, tag, n.keys(key).Inspect()))
	return c
}

// StartCount asks how many wait for key, for its owner on a Redlock. own is the ID of the turn that the owner has had,
// or empty. [Call.State] reads the outcome.
func (n *Node) StartCount(ready chan<- *Call, tag int, key, own string) *Call {
	c := &Call{}
	n.pipeline.Submit(c.of(n, ready, tag, n.keys(key).Count(own)))
	return c
}

// State reads the outcome of [Node.StartInspect] and of [Node.StartCount].
func (c *Call) State() (State, error) { return c.node.state(c.call.Reply, c.call.Err) }

func (n *Node) state(reply drivers.Reply, err error) (State, error) {
	if err != nil {
		return unknownState, n.fault(err)
	}
	s, err := decodeState(reply)
	return s, n.fault(err)
}

var unknownState = State{Inspection: inspect.Inspection{State: inspect.Unknown}}

// decodeState reads the reply to an inspection.
func decodeState(reply drivers.Reply) (State, error) {
	r, err := script.ReadState(reply)
	if err != nil {
		return unknownState, err
	}
	s := stateOf(r)
	for _, e := range r.Entries {
		s.Holders = append(s.Holders, stateOf(e).Inspection)
	}
	return s, nil
}

func stateOf(r script.State) State {
	s := State{Inspection: inspect.Inspection{State: inspect.Free, Fence: r.Counter, Waiting: r.Waiting}}
	switch r.Status {
	case script.NotALock:
		s.State = inspect.Foreign
	case script.TakenOver:
		s.State, s.value, s.Remaining, s.Held = inspect.Held, r.Value, r.Left, r.Held
		var isKept bool
		if v, ours := script.ReadValue(r.Value); ours {
			s.owner, s.node, s.Label = v.Token, v.Node, v.Label
		} else if s.owner, isKept = strings.CutPrefix(r.Value, script.Kept); isKept {
			s.State = inspect.Kept
		}
		s.Owner = s.owner[:min(shown, len(s.owner))]
		s.Permits = r.Permits
		for kind, of := range kinds {
			if of == r.Kind {
				s.Kind = kind.String()
			}
		}
	}
	return s
}

// StartForce takes key from the owner of s, if the lock still belongs to that owner. onRedlock says that waiters queue
// for the turn to ask, not for the lock. [Call.Owned] and [Call.Unfinished] read the outcome.
func (n *Node) StartForce(ready chan<- *Call, tag int, key string, s State, onRedlock bool) *Call {
	c := &Call{}
	n.pipeline.Submit(c.of(n, ready, tag, n.force(key, s, onRedlock)))
	return c
}

func (n *Node) force(key string, s State, onRedlock bool) script.Command {
	if s.group {
		return n.keys(key).ForceEntry(s.value, s.Remaining+cleanupLife, n.guard)
	}
	return n.keys(key).Force(s.value, s.Remaining+cleanupLife, onRedlock, n.guard)
}

// Inspect implements inspect.Inspector.
func (n *Node) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	s, err := n.inspect(ctx, key)
	return s.Inspection, err
}

func (n *Node) inspect(ctx context.Context, key string) (State, error) {
	return n.inspectOwner(ctx, key, "")
}

// inspectOwner is inspect. Of a group, it returns the entry of an owner whose token begins with owner, if
// there is one, and else that whose time is over first.
func (n *Node) inspectOwner(ctx context.Context, key, owner string) (State, error) {
	if err := n.Check(&backend.Request{Key: key}); err != nil {
		return unknownState, err
	}
	s, err := n.state(n.ask(ctx, n.keys(key).Inspect()))
	if err != nil || s.State != inspect.Foreign {
		return s, err
	}
	s, err = n.state(n.ask(ctx, n.keys(key).InspectGroup(owner, math.MaxInt32)))
	if owner != "" && s.State == inspect.Free {
		return n.inspectOwner(ctx, key, "")
	}
	s.group = s.State != inspect.Foreign
	return s, err
}

// isWanted reports whether others wait for the lock of req, or may have to wait for what it has of a group.
func (n *Node) isWanted(ctx context.Context, req *backend.Request) bool {
	var s State
	var err error
	if req.Group == nil {
		s, err = n.inspect(ctx, req.Key)
	} else {
		s, err = n.state(n.ask(ctx, n.keys(req.Key).InspectGroup(req.Token, 1)))
	}
	return err == nil && s.Waiting > 0
}

// ask sends the command of a tool, and waits for the reply; see [Node.send].
func (n *Node) ask(ctx context.Context, cmd script.Command) (drivers.Reply, error) {
	return n.send(ctx, n.pipeline, cmd, n.timeout, n.timeout/2, nil)
}

// ForceRelease implements inspect.Inspector.
func (n *Node) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	s, err := n.inspectOwner(ctx, key, owner)
	if err == nil {
		err = s.takeable(owner)
	}
	for more := err == nil; more; {
		var reply drivers.Reply
		reply, err = n.ask(ctx, n.force(key, s, false))
		o, _ := script.ReadOwned(reply)
		err, more = n.owned(reply, err), o.Unfinished
	}
	return s.Inspection, err
}

// RaiseFences implements inspect.FenceRaiser. It writes the counters of all hash slots. Those that are not there yet
// would begin at the server's clock, which may be behind.
func (n *Node) RaiseFences(ctx context.Context, past uint64) error {
	n.inFlight.Enter()
	defer n.inFlight.Leave()
	return n.fault(eachSlot(ctx, func(ctx context.Context, slot uint16) error {
		cmd := script.RaiseCounter(n.prefix, slot, past)
		reply, err := n.send(ctx, n.granting, cmd, n.timeout, n.timeout/2, nil)
		if err == nil {
			err = script.ReadRaised(reply)
		}
		return err
	}))
}

// takeable returns why the lock cannot be taken from an owner whose token begins with owner, or nil if it can.
func (s State) takeable(owner string) error {
	switch {
	case s.State == inspect.Foreign:
		return locker.ErrForeignKey
	case s.value == "":
		return fmt.Errorf("%w: the lock is free", locker.ErrNotHeld)
	case !s.OwnedBy(owner):
		return fmt.Errorf("%w: the lock belongs to another owner, %s…", locker.ErrNotHeld, s.Owner)
	case owner == "" && len(s.Holders) > 1:
		return fmt.Errorf("%w: %d owners have something of the group, and none is named", locker.ErrInvalid, len(s.Holders))
	}
	return nil
}

// Names are the names in Redis that a lock uses. They are for tools that check permissions or clean up.
type Names struct {
	Keys    []string // those that belong to the lock alone; the lock itself comes first
	Counter string   // the fencing counter, which the lock shares with others; it must not be changed
	Channel string   // that of its messages
	Sharded string   // that of its messages on a Redis Cluster
}

// NamesOf returns the names of the lock of key.
func NamesOf(prefix, key string) Names {
	k := script.KeysOf(prefix, key)
	return Names{
		Keys:    []string{k.Lock, k.Wait(), k.Queue(), k.Turn(), k.Entries()},
		Counter: k.Fence(),
		Channel: script.Inbox(prefix, key),
		Sharded: script.ShardedInbox(prefix, key, script.Slot(k.Lock)),
	}
}
