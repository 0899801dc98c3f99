package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// nodeError is a fault with the name of its node.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }

// Unwrap hides the context errors of drivers and dialers. They do not say whether the caller's own context has ended.
func (e *nodeError) Unwrap() error {
	if errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded) {
		return nil
	}
	return e.err
}

// errGivenUp is the answer to an attempt that was executed after its own clean-up.
var errGivenUp = errors.New("the attempt was given up before it arrived")

// decodeVote reads the reply to an acquisition.
func decodeVote(reply drivers.Reply) (Vote, error) {
	a, err := script.ReadAcquired(reply)
	if err == nil {
		err = errorOf(a.Status, locker.HeldError{Remaining: a.Left, Label: a.Label}, a.Node)
	}
	return Vote{Granted: a.Status == script.Granted, Counter: a.Counter, Owner: a.Owner}, err
}

// decodeOwned reads the reply to a raise, an extension or a release.
func decodeOwned(reply drivers.Reply) error {
	o, err := script.ReadOwned(reply)
	if err != nil {
		return err
	}
	return errorOf(o.Status, locker.HeldError{}, o.Node)
}

// errorOf returns the status of a script as an error of package locker, or nil if the script has done what it was asked
// for. held describes another owner's lock if the status is Waiting. number is the number of the other node if the
// status is Duplicate.
func errorOf(s script.Status, held locker.HeldError, number int) error {
	switch s {
	case script.Waiting:
		return &held
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

// Alias is the error of a node whose server has the lock of the same attempt under the number of another node. It then
// is one server with two addresses, and does not vote a second time. As the answer to an acquisition, it says that
// nothing was done. As the answer to a release, it says that the lock was deleted.
type Alias struct{ Number int }

func (e *Alias) Error() string { return fmt.Sprintf("the same server as node %d", e.Number) }

var errGone = &locker.NotHeldError{Reason: locker.LostGone}

func isNotSent(err error) bool { return errors.Is(err, drivers.ErrNotSent) }

// known reports whether an error that was decoded from a reply proves that the attempt has set no key.
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

// isDoubtful reports whether err, of a request or decoded from its reply, leaves open whether the request was executed
// or will be.
func isDoubtful(err error) bool { return err != nil && !isNotSent(err) && !known(err) }
