package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Inspector is what a [Locker] also is if its store can be looked into: for operators, not for programs that lock. [As]
// finds it through middleware. [Client] is one always; if its [Backend] is none, errors match errors.ErrUnsupported.
//
// What it says was true when the store was asked, and may be no more: to know that a lock is free one has to take it.
type Inspector interface {
	// Inspect says what the store knows of key. It changes nothing, and it does not wait for a lock.
	//
	// Errors match [ErrUnavailable] (also [ErrNoQuorum]) if the store, or too much of it, did not answer; the Inspection
	// then has what is known. Something under the key that is not a lock is no error, but the state [LockForeign].
	Inspect(ctx context.Context, key string) (Inspection, error)

	// ForceRelease takes the lock away from its owner, and gives it to who waits for it. It is for an owner that hangs, and
	// does not stop it: until its next renewal, at the latest at the end of its validity, it takes itself for the owner,
	// and so two may be at work. Its lease then ends as lost ([LostTakenOver] or [LostGone]), its Unlock fails with
	// [ErrNotHeld]. Fencing tokens go on growing.
	//
	// The value of owner decides from whom: its token, or a beginning of that, such as [Inspection.Owner]. If it is empty
	// the lock is taken from whoever has it, or from nobody if it is only kept ([MinHold]). The Inspection is that of the
	// moment before, and says from whom it was taken. If the lock changes hands in between, the next owner is spared.
	//
	// Errors match [ErrNotHeld] if the lock is free or another owner's, [ErrForeignKey] if what is there is not a lock,
	// [ErrInvalid], and [ErrUnavailable] if it is not known whether the lock was taken.
	ForceRelease(ctx context.Context, key, owner string) (Inspection, error)
}

// LockState is a lock's state in one word.
type LockState string

const (
	// LockFree means that nobody has the lock.
	LockFree LockState = "free"
	// LockHeld means that it has an owner.
	LockHeld LockState = "held"
	// LockKept means that it was released and stays taken by nobody for a while, see [MinHold].
	LockKept LockState = "kept"
	// LockSplit means that of the nodes of a quorum some have an owner, none of whom has a majority, and that too few are
	// free: contenders are asking, or one has died while it asked.
	LockSplit LockState = "split"
	// LockForeign means that the key has something that is not a lock.
	LockForeign LockState = "foreign"
	// LockUnknown means that the store, or too much of it, did not answer.
	LockUnknown LockState = "unknown"
)

// Inspection is what a store, or one of its nodes, knows of a lock.
type Inspection struct {
	State LockState
	// Owner is the beginning of the owner's token: enough to tell owners apart, not enough to act as one. Of a kept lock it
	// is the last owner's, if that is known.
	Owner string
	// Remaining is the time after which the lock is free if nobody prolongs it. 0: free, or not known.
	Remaining time.Duration
	// Held is how long the owner has had it, by the store's clock. 0: not known. On Redis it is concluded from the fencing
	// counter, which follows the clock: it says too little if the clock was set back, and it is wrong for an owner that is
	// not of this library. On Redlock it is right to a tenth of a second.
	Held time.Duration
	// Fence is the owner's fencing token; of a free lock the last one that is known. 0: none.
	Fence uint64
	// Waiting is how many Clients wait in the store's queue; those that poll are not among them.
	Waiting int
	// Nodes is what each node of a quorum said, in the order of the configuration; nil if there is one store.
	Nodes []NodeInspection
}

// NodeInspection is what one node of a quorum knows of a lock.
type NodeInspection struct {
	Node string // its name
	Inspection
	Err error // why the state is unknown, or why the node does not vote
}

var errNoInspector = fmt.Errorf("this store cannot be looked into: %w", errors.ErrUnsupported)

// Inspect implements [Inspector].
func (c *Client) Inspect(ctx context.Context, key string) (Inspection, error) {
	return c.inspect(ctx, "inspect", key, func(i Inspector) (Inspection, error) { return i.Inspect(ctx, key) })
}

// ForceRelease implements [Inspector].
func (c *Client) ForceRelease(ctx context.Context, key, owner string) (Inspection, error) {
	return c.inspect(ctx, "release", key, func(i Inspector) (Inspection, error) { return i.ForceRelease(ctx, key, owner) })
}

func (c *Client) inspect(ctx context.Context, op, key string, ask func(Inspector) (Inspection, error)) (Inspection, error) {
	seen := Inspection{State: LockUnknown}
	o := newOptions(nil)
	err := o.validate(key)
	i, ok := c.backend.(Inspector)
	switch {
	case err != nil:
	case !ok:
		err = errNoInspector
	case ended(ctx) != nil:
		err = withContext(ctx, nil)
	case !c.enter(&c.attempts):
		err = ErrClosed
	default:
		seen, err = ask(i)
		c.attempts.Done()
		if err = fromBackend(err); err != nil {
			err = withContext(ctx, err)
		}
	}
	if err != nil {
		return seen, &Error{op, key, err}
	}
	return seen, nil
}
