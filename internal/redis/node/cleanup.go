package node

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
)

// cleanupLife is how long, beyond the TTL, a clean-up is repeated and its tombstone lives. Within this time, a command
// that was lost on the way to a hung server or in a proxy may still be executed. If a command is executed even later,
// the key that it sets ends with its TTL.
const cleanupLife = time.Minute

// chore is a release that is repeated until it is answered. It undoes an attempt whose outcome is not known, or follows
// a release that was not answered.
type chore struct {
	script.Release
	until time.Time     // until when the lock stays taken after its release
	life  time.Duration // for how long there may be something to release
}

// landed reports whether all requests that may have acquired the lock of req were answered.
func landed(req *backend.Request) bool {
	w, ok := req.Private.(*waiter)
	return !ok || !w.stragglers()
}

// releaseOf returns the release of the lock that req has or may have. landed says that the acquisition is known to have
// been executed, so that no tombstone is needed.
func (n *Node) releaseOf(req *backend.Request, landed bool, notify script.Notify) script.Release {
	r := script.Release{Attempt: n.attempt(req), Keep: max(0, req.Keep), Certify: req.Fence, Notify: notify}
	if !landed {
		r.Tombstone = req.TTL + cleanupLife
	}
	return r
}

// undoing returns r, the release of req, as a clean-up. A clean-up does not ask for a certificate, because nobody waits
// for one.
func undoing(r script.Release, req *backend.Request) chore {
	r.Certify, r.Contended = 0, false // nobody knows whether the lock is contended when the clean-up is repeated
	return chore{Release: r, until: time.Now().Add(req.Keep), life: req.TTL + cleanupLife}
}

func (n *Node) undoing(req *backend.Request, landed bool, notify script.Notify) chore {
	return undoing(n.releaseOf(req, landed, notify), req)
}

// repeat does c in the background.
func (n *Node) repeat(c chore) {
	n.chores.Repeat(time.Now().Add(c.life), func(ctx context.Context) error { return n.clean(ctx, c) })
}

var (
	errRefused    = errors.New("a clean-up was refused")
	errUnfinished = errors.New("a clean-up was not finished")
)

// mostSteps bounds how often a command is sent again at once if the server says that it has not finished. One call
// looks at 64 waiters only, hands permits on to 64, and removes 64 entries of a group whose time is over.
const mostSteps = 32

// handOn lets those that wait for something of the group of req be told what they have: it is the release of one that
// has nothing.
func (n *Node) handOn(req backend.Request) {
	req.Token, req.Fence, req.Keep = backend.NewToken(), 0, 0
	n.leave(&req, true)
}

// clean sends c, and again if it is not finished.
func (n *Node) clean(ctx context.Context, c chore) (err error) {
	for range mostSteps {
		if err = n.cleanOnce(ctx, c); !errors.Is(err, errUnfinished) {
			break
		}
	}
	return err
}

func (n *Node) cleanOnce(ctx context.Context, c chore) error {
	c.Keep = max(0, time.Until(c.until))
	// Mostly the lock is gone, and not contended.
	call, answered := &pipeline.Call{Command: c.Command(), Quiet: true}, make(chan struct{})
	n.pipeline.Submit(call, func() { close(answered) })
	select {
	case <-answered:
	case <-ctx.Done():
		n.pipeline.Withdraw(call)
		return ctx.Err()
	}
	_, isInt := call.Reply.(int64)
	o, _ := script.ReadOwned(call.Reply)
	switch {
	case call.Err != nil:
		return call.Err
	case !isInt:
		return errRefused
	case o.Unfinished:
		return errUnfinished
	}
	return nil
}
