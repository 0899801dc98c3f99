// Package several has what a call that acquires several locks tells the Clients below it. It is in the context of the
// call, because that passes through all middleware.
package several

import (
	"context"
	"sync"
	"time"
)

// Call is what is known of a call that acquires several locks: whether it waits, and since when the store fails. Each
// Lock that is made for the call adds to it, and goes on from that.
type Call struct {
	mu      sync.Mutex
	owned   []func() // see Own
	kept    int      // how often Keep was called, less the calls of End
	ended   bool
	granted bool      // a lock was granted
	alone   bool      // an option counts from the acquisition of a lock
	waits   bool      // Lock tolerates a failing store from the first attempt on
	faulty  time.Time // when the first contact began that has failed since the last answer; zero if there is none
}

type callKey struct{}

// With returns a context for the calls of Lock that are made for c.
func (c *Call) With(ctx context.Context) context.Context { return context.WithValue(ctx, callKey{}, c) }

// From returns the Call that ctx belongs to, or nil. The methods for Clients work on a nil Call.
func From(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Wait records that the call waits, because a lock was seen held or lost.
func (c *Call) Wait() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = true
}

// Answered records that the store has answered.
func (c *Call) Answered() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faulty = time.Time{}
}

// Granted records that a Client has granted a lock. alone says that an option counts from its acquisition, as MaxHold
// does, so that the lock cannot be shared with callers that come later.
func (c *Call) Granted(alone bool) {
	c.Answered()
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.granted, c.alone = true, c.alone || alone
}

// Own makes the call an owner of a lock, until the call has ended: Close of the Client waits for its release as it
// waits for an attempt. ended is called then. Own returns false if the call has ended, as for a lock that a hook
// acquires.
func (c *Call) Own(ended func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.owned = append(c.owned, ended)
	}
	return !c.ended
}

// Keep puts the end of the call off until End is called once more, for releases that go on when the call has returned.
func (c *Call) Keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept++
}

// End ends the call, unless Keep has put that off. What it owns belongs to its caller, or was released.
func (c *Call) End() {
	c.mu.Lock()
	c.kept--
	var owned []func()
	if c.kept < 0 {
		owned, c.owned, c.ended = c.owned, nil, true
	}
	c.mu.Unlock()
	for _, ended := range owned {
		ended()
	}
}

// Shareable reports whether a Client has granted locks, none of them alone.
func (c *Call) Shareable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted && !c.alone
}

// Failing records the end of a Lock that has failed. since is when the first contact began that has failed since the
// last answer, and zero if the last contact has succeeded.
func (c *Call) Failing(since time.Time) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if since.IsZero() || c.faulty.IsZero() {
		c.faulty = since
	}
}

// Seen adds what the call has seen to what a single Lock has seen: whether a lock was held, and how long contacts have
// been failing.
func (c *Call) Seen(held bool, since time.Duration) (bool, time.Duration) {
	if c == nil {
		return held, since
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.faulty.IsZero() {
		since = max(since, time.Since(c.faulty))
	}
	return held || c.waits, since
}

// Gate is what the Lock of a gate has to know of the places behind it: a caller that holds too many of them waits for
// itself, because whoever has the gate waits for them.
type Gate struct {
	Name   string   // of the gate; middleware may put something in front of it, and of Places
	Places []string // the names of their locks
	Spare  int      // how many of them the caller may hold
}

type gateKey struct{}

// With returns a context for the Lock of the gate.
func (g *Gate) With(ctx context.Context) context.Context { return context.WithValue(ctx, gateKey{}, g) }

// GateFrom returns the Gate that a Lock with ctx may be for, or nil.
func GateFrom(ctx context.Context) *Gate {
	g, _ := ctx.Value(gateKey{}).(*Gate)
	return g
}

type partialKey struct{}

// Partial returns a context for the locks of a call that needs several of them, and waits with those that it has. What
// the caller has asked for counts from when it has all.
func Partial(ctx context.Context) context.Context { return context.WithValue(ctx, partialKey{}, true) }

// IsPartial reports whether ctx is from Partial.
func IsPartial(ctx context.Context) bool { return ctx.Value(partialKey{}) != nil }

type undoKey struct{}

// Undo returns a context for the Unlock of a lease that was never returned to a caller. MinHold does not apply to it,
// and the release goes on in the background when the context ends.
func Undo(ctx context.Context) context.Context { return context.WithValue(ctx, undoKey{}, true) }

// Undoes reports whether ctx is from Undo.
func Undoes(ctx context.Context) bool { return ctx.Value(undoKey{}) != nil }

// Sought is the key of a value in a context: the innermost lease that the context carries for which Is returns true.
type Sought interface{ Is(lease any) bool }

// Probe asks the Client below a TryLockMany whether the context of the call carries a lease of one of its locks. Only
// the Client knows what middleware makes of their names. It acquires nothing then.
type Probe struct{ Carried bool }

type probeKey struct{}

// With returns a context for the TryLockMany.
func (p *Probe) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, probeKey{}, p)
}

// ProbeFrom returns the Probe that a TryLockMany with ctx is made for, or nil.
func ProbeFrom(ctx context.Context) *Probe {
	p, _ := ctx.Value(probeKey{}).(*Probe)
	return p
}
