package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
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

// explained adds to a refusal what the server does not say of it: what locks need.
func explained(err error, refusal drivers.ServerError) error {
	text := strings.ToLower(refusal.Error())
	if strings.Contains(text, "unauthenticated") { // it says NOAUTH to shorter commands only
		return fmt.Errorf("%w (the server demands a password, and the client has not given one)", err)
	}
	missing := strings.Contains(text, "unknown command") || strings.Contains(text, "no permissions to run")
	switch {
	case missing && strings.Contains(text, "eval"):
		return fmt.Errorf("%w (locks need EVAL and EVALSHA: a server or a user without them cannot keep locks)", err)
	case missing, strings.Contains(text, "called from script"), strings.Contains(text, "called from lua script"),
		strings.Contains(text, "user executing the script"):
		return fmt.Errorf("%w (locker doctor names each command that is missing)", err)
	}
	return err
}

// ErrGivenUp is the answer to an attempt that was executed after its own clean-up. The node is in order.
var ErrGivenUp = errors.New("the attempt was given up before it arrived")

// errorOf returns the status of a script as an error of package locker, or nil if the script has done what it was asked
// for. held describes another owner's lock if the status is Waiting, and has the time of a status of the guard. number
// is the number of the other node if the status is Duplicate.
func errorOf(s script.Status, held locker.HeldError, number int) error {
	switch s {
	case script.Waiting:
		h := held // held itself would be allocated for every answer
		return &h
	case script.GivenUp:
		return ErrGivenUp
	case script.NotALock:
		return locker.ErrForeignKey
	case script.Apart:
		return errApart
	case script.NotUpgradeable:
		return errNotUpgradeable
	case script.Duplicate:
		return alias(number)
	case script.Resting, script.OtherGuard, script.NoGuard:
		return &guardError{s, held.Remaining}
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

// SameServer is the error of a node whose server has the lock of the same attempt under the number of another node. It
// then is one server with two addresses, and does not vote a second time: each node writes its number into the value of
// the lock, and a vote counts only if owner and number agree. As the answer to an acquisition, it says that nothing was
// done. As the answer to a release, it says that the lock was deleted. See
// docs/adr/0025-the-nodes-number-in-the-value.md.
type SameServer struct{ A, B string } // the names of the two nodes

func (e *SameServer) Error() string { return e.A + " and " + e.B + " are the same server" }

// Unwrap makes the error match ErrUnavailable, because for locks the node does not exist.
func (e *SameServer) Unwrap() error { return locker.ErrUnavailable }

// alias is a SameServer before the nodes are named. It is the number of the other node.
type alias int

func (a alias) Error() string { return fmt.Sprintf("the same server as node %d", int(a)) }

// errApart keeps programs with groups from those that make a lock of each place.
var errApart = fmt.Errorf("%w: a program has a lock for one of the places, or waits at their gate: it is of another "+
	"version", locker.ErrForeignKey)

// errNotUpgradeable is the answer to an upgrade of a lock that has ended. The upgrade is in no queue then.
var errNotUpgradeable = fmt.Errorf("%w: the upgradeable lock has ended", locker.ErrNotHeld)

var errGone = &locker.NotHeldError{Reason: locker.LostGone}

func isNotSent(err error) bool { return errors.Is(err, drivers.ErrNotSent) }

// known reports whether an error that was decoded from a reply proves that the attempt has set no key.
func known(err error) bool {
	var e drivers.ServerError
	if errors.As(err, &e) {
		return script.IsRefusal(e)
	}
	if errors.As(err, new(alias)) || errors.As(err, new(*guardError)) {
		return true
	}
	return errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrForeignKey) || errors.Is(err, ErrGivenUp) ||
		errors.Is(err, locker.ErrNotHeld)
}

// isFault reports whether err may be temporary: the server did not answer, or refused the command for now.
func isFault(err error) bool {
	var guarded *guardError
	if errors.As(err, &guarded) {
		return guarded.status != script.OtherGuard
	}
	return !errors.Is(err, locker.ErrForeignKey) && !errors.Is(err, pipeline.ErrClosed) && !errors.Is(err, ErrGivenUp) &&
		!errors.Is(err, errNotUpgradeable)
}

// isShortfall reports whether err says that the request was executed, and that too few replicas have confirmed it.
func isShortfall(err error) bool {
	return errors.As(err, new(*pipeline.Shortfall)) || errors.Is(err, locker.ErrNotReplicated)
}

// isDoubtful reports whether err, of a request or decoded from its reply, leaves open whether the request was executed
// or will be.
func isDoubtful(err error) bool { return err != nil && !isNotSent(err) && !known(err) }

// isMoving reports whether a server of a Redis Cluster has refused a command because its slot moves, or because no
// server has the slot. A redirection is one that the client has not followed, for example to a server that is gone.
func isMoving(reply drivers.Reply) bool {
	refusal, _ := reply.(drivers.ServerError)
	switch refusal.Code() {
	case "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN":
		return true
	}
	return false
}

// guardError says why a node does not grant a lock because of its restart guard. Nothing was granted then.
type guardError struct {
	status script.Status
	left   time.Duration // see script.Acquired
}

func (e *guardError) Error() string { return fmt.Sprintf("status %d of the restart guard", e.status) }

// of returns the error for callers of n.
func (e *guardError) of(n *Node) error {
	switch e.status {
	case script.Resting:
		return &locker.GracePeriodError{Node: n.name, Remaining: e.left}
	case script.OtherGuard:
		return fmt.Errorf("%w: %s: the restart guard of this client is for TTLs of up to %v, and that of other "+
			"clients with the same prefix for up to %v: all must have the same", locker.ErrInvalid, n.name,
			n.maxTTL, script.MaxTTLOf(e.left))
	default:
		return fmt.Errorf("%w: %w", locker.ErrUnavailable, &nodeError{n.name, ErrNoGuard})
	}
}

// ErrNoGuard is the error of a node that cannot have a restart guard. It grants nothing.
var ErrNoGuard = errors.New("the restart guard needs INFO inside of scripts: the user needs the right to it " +
	"(ACL: +info), and some managed services do not have it")
