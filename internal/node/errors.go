package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// nodeError is a fault of one node, by name.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }

// Unwrap hides the context errors of drivers and dialers: whether the caller's context ended is not theirs to say.
func (e *nodeError) Unwrap() error {
	if errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded) {
		return nil
	}
	return e.err
}

// errGivenUp is the answer to an attempt that arrived after its own clean-up. Nobody waits for it.
var errGivenUp = errors.New("the attempt was given up before it arrived")

// decodeVote reads the reply to an acquisition.
func decodeVote(reply drivers.Reply) (Vote, error) {
	a, err := script.ReadAcquired(reply)
	if err == nil {
		err = errorOf(a.Status, a.Left, a.Node)
	}
	return Vote{Granted: a.Status == script.Granted, Counter: a.Counter, Owner: a.Owner}, err
}

// decodeOwned reads the reply to a raise, an extension or a release.
func decodeOwned(reply drivers.Reply) error {
	o, err := script.ReadOwned(reply)
	if err != nil {
		return err
	}
	return errorOf(o.Status, 0, o.Node)
}

// errorOf says in the words of package locker what a script has answered: nil if it has done what it was asked for.
// left is the remaining time of the lock that another owner has, number that of another node.
func errorOf(s script.Status, left time.Duration, number int) error {
	switch s {
	case script.Waiting:
		return &locker.HeldError{Remaining: left}
	case script.GivenUp:
		return errGivenUp
	case script.NotALock:
		return locker.ErrForeignKey
	case script.Duplicate:
		return &Alias{number}
	case script.Gone:
		return errGone
	case script.Superseded:
		return &locker.NotHeldError{Reason: locker.LostSuperseded}
	case script.TakenOver:
		return &locker.NotHeldError{Reason: locker.LostTakenOver}
	default:
		return nil
	}
}

// Alias is why the answer of a server is not that of the node that was asked: what it has is the same attempt's, as
// another of its nodes. Of an acquisition it says that nothing was done, of a release that the lock was deleted.
type Alias struct{ Number int }

func (e *Alias) Error() string { return fmt.Sprintf("the same server as node %d", e.Number) }

var errGone = &locker.NotHeldError{Reason: locker.LostGone}

func isNotSent(err error) bool { return errors.Is(err, drivers.ErrNotSent) }

// known reports whether an error decoded from a reply leaves no doubt that the attempt has set no key.
func known(err error) bool {
	var e drivers.ServerError
	if errors.As(err, &e) {
		return script.IsRefusal(e)
	}
	if errors.As(err, new(*Alias)) {
		return true
	}
	return errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrForeignKey) || errors.Is(err, errGivenUp)
}

// isDoubtful reports whether an error of a request, or decoded from its reply, leaves it open whether the request has
// been executed, or may be yet.
func isDoubtful(err error) bool { return err != nil && !isNotSent(err) && !known(err) }
