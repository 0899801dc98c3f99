// Package several has what a call that acquires several locks tells the Clients below it. It is in the context of the
// call, because that passes through all middleware.
package several

import (
	"context"
	"slices"
	"strings"
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

// CallFrom returns the Call that ctx belongs to, or nil. The methods for Clients work on a nil Call.
func CallFrom(ctx context.Context) *Call {
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

// Gates tells the Client below a call that has to pass gates, unless nobody waits, which places are behind them. A
// caller that has too many of these waits for itself, because whoever has a gate waits for them. Only the Client can
// know that: it finds its own leases in the context of the call, and middleware may have changed the names.
type Gates struct {
	Names  []string // of the gates; middleware may put something before or after them, and does the same to Places
	Places []string // the names of their locks
	Spare  int      // how many of them the caller may have
}

type gatesKey struct{}

// With returns a context for the call.
func (g *Gates) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, gatesKey{}, g)
}

// Behind returns the keys of the places, and how many of them the caller may have, if key is that of a gate of the call
// that ctx belongs to.
func Behind(ctx context.Context, key string) (places []string, spare int) {
	g, _ := ctx.Value(gatesKey{}).(*Gates)
	if g == nil {
		return nil, 0
	}
	for _, name := range g.Names {
		if front, back, ok := strings.Cut(key, name); ok {
			for _, place := range g.Places {
				places = append(places, front+place+back)
			}
			return places, g.Spare
		}
	}
	return nil, 0
}

// Permits asks the Client below for permits of a group, and not for a lock; see backend.Group.
type Permits struct {
	// Name is that of the group. Middleware may put something before or after it, and may acquire other locks with the
	// same context.
	Name string

	N, Weight int

	mu      sync.Mutex
	granted []grantedPermits
}

// grantedPermits is what a Client has acquired for the call.
type grantedPermits struct {
	fence   uint64
	numbers []int
}

// Granted records the numbers of permits that a Client has acquired with that fencing token.
func (p *Permits) Granted(fence uint64, numbers []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.granted = append(p.granted, grantedPermits{fence, numbers})
}

// Numbers returns the numbers of the permits whose lease has that fencing token. A middleware may acquire more than
// once, also at the same time, and return one of the leases. If it has changed the token, they are those of the last
// one. Numbers returns nil if there is none.
func (p *Permits) Numbers(fence uint64) (numbers []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.granted {
		if numbers = g.numbers; g.fence == fence {
			break
		}
	}
	return numbers
}

type permitsKey struct{}

// With returns a context for the call.
func (p *Permits) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, permitsKey{}, p)
}

// PermitsOf is what the name of a group of permits has behind that of its key.
const PermitsOf = "permits"

// NamesPermits reports whether key is the name of a group of permits.
func NamesPermits(key string) bool {
	return strings.HasSuffix(key, "#"+PermitsOf) || strings.HasSuffix(key, "#:"+PermitsOf)
}

// ForLocks returns a context for calls that acquire locks, whatever permits the call asks for that ctx belongs to:
// their names may have that of its group in them.
func ForLocks(ctx context.Context) context.Context {
	if ctx.Value(permitsKey{}) == nil {
		return ctx
	}
	return (*Permits)(nil).With(ctx)
}

// PermitsFrom returns the permits that a call with the context ctx asks for, or nil if key is that of a lock.
func PermitsFrom(ctx context.Context, key string) *Permits {
	p, _ := ctx.Value(permitsKey{}).(*Permits)
	if p == nil || !strings.Contains(key, p.Name) {
		return nil
	}
	return p
}

// Partial has locks that a call needs only while it waits, or while it waits for more of them. What the caller has
// asked for counts from when it has all.
type Partial struct {
	mu     sync.Mutex
	begins []func(ctx context.Context) error
}

type partialKey struct{}

// With returns a context for the calls that acquire the locks.
func (p *Partial) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, partialKey{}, p)
}

// PartialFrom returns the Partial that a lock which is acquired with ctx belongs to, or nil.
func PartialFrom(ctx context.Context) *Partial {
	p, _ := ctx.Value(partialKey{}).(*Partial)
	return p
}

// Add adds a lock. begin makes its lease what the caller has asked for.
func (p *Partial) Add(begin func(ctx context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begins = append(p.begins, begin)
}

// Begins returns what Add was called with.
func (p *Partial) Begins() []func(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.begins)
}

type undoKey struct{}

// Undo returns a context for the Unlock of a lease that was never returned to a caller. MinHold does not apply to it,
// and the release goes on in the background when the context ends.
func Undo(ctx context.Context) context.Context { return context.WithValue(ctx, undoKey{}, true) }

// Undoes reports whether ctx is from Undo.
func Undoes(ctx context.Context) bool { return ctx.Value(undoKey{}) != nil }

// Sought is the key of a value in a context: the innermost lease that the context carries for which Is returns true.
type Sought interface{ Is(lease any) bool }
