package redsync

import (
	"context"
	"errors"
	"fmt"

	"github.com/golocker/locker"
	"github.com/golocker/locker/redlock"
)

// Errors that are compared by errors.Is. Where they come with more, they also match the errors of package locker.
var (
	// ErrFailed means that the lock was not acquired before the context ended. It is returned as it is.
	ErrFailed = errors.New("redsync: the lock was not acquired in time")

	// ErrExtendFailed means that the lock was not extended, because it is over.
	ErrExtendFailed = errors.New("redsync: the lock is over and was not extended")

	// ErrLockAlreadyExpired means that Unlock has not found the lock, and that nobody else has it.
	ErrLockAlreadyExpired = errors.New("redsync: the lock was over before it was unlocked")
)

// ErrTaken means that another owner has the lock, and that more tries would not have helped. It is returned as a
// pointer. It also matches locker.ErrHeld, or what else has happened, and errors.As finds a *locker.HeldError in it,
// with the label of the holder.
type ErrTaken struct {
	Nodes []int // which servers have said so; the index of their pools
	err   error
}

// Error returns the text of the cause.
func (err ErrTaken) Error() string {
	if err.err == nil {
		return fmt.Sprintf("redsync: another owner has the lock on the nodes %v", err.Nodes)
	}
	return "redsync: " + err.err.Error()
}

// Unwrap returns the error of package locker.
func (err ErrTaken) Unwrap() error { return err.err }

// ErrNodeTaken says that one server of several has the lock for another owner, while too few servers have answered to
// tell whether more of them have. It is returned as a pointer.
type ErrNodeTaken struct {
	Node int
}

// Error names the server.
func (err ErrNodeTaken) Error() string {
	return fmt.Sprintf("redsync: another owner has the lock on node %d", err.Node)
}

// RedisError says why one server has not answered, or what it has refused. It is returned as a pointer.
type RedisError struct {
	Node int
	Err  error
}

// Error names the server and the reason.
func (err RedisError) Error() string { return fmt.Sprintf("redsync: node %d: %v", err.Node, err.Err) }

// Unwrap returns the reason.
func (err RedisError) Unwrap() error { return err.Err }

// nodesError is an error of package locker, and has what each server said as errors of this package.
type nodesError struct {
	err   error
	nodes []error
}

func (e *nodesError) Error() string   { return "redsync: " + e.err.Error() }
func (e *nodesError) Unwrap() []error { return append([]error{e.err}, e.nodes...) }

// over matches the errors of a lock that somebody else has, or that the caller has no more.
var over = []error{
	locker.ErrHeld, locker.ErrForeignKey, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked,
}

func isOver(err error) bool {
	for _, target := range over {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// failure returns err as an error of this package. Errors about arguments stay as they are.
func (r *Redsync) failure(err error) error {
	switch {
	case isOver(err):
		return r.taken(err)
	case !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, context.Canceled):
		return err
	}
	var q *redlock.QuorumError
	if !errors.As(err, &q) {
		return &RedisError{Err: err}
	}
	e := &nodesError{err: err}
	for i, v := range q.Votes {
		switch v.Outcome {
		case redlock.Agreed, redlock.NotAsked, redlock.NotHeard:
		case redlock.Held:
			e.nodes = append(e.nodes, &ErrNodeTaken{i})
		default:
			why := v.Err
			if why == nil {
				why = errors.New(string(v.Outcome))
			}
			e.nodes = append(e.nodes, &RedisError{i, why})
		}
	}
	return e
}

// taken returns err as an ErrTaken.
func (r *Redsync) taken(err error) error {
	e := &ErrTaken{err: err}
	var q *redlock.QuorumError
	votes := errors.As(err, &q)
	for i := range r.pools {
		if !votes || q.Votes[i].Outcome == redlock.Held || errors.Is(q.Votes[i].Err, locker.ErrForeignKey) {
			e.Nodes = append(e.Nodes, i)
		}
	}
	return e
}
