// Package several has what a call that acquires several locks tells the Clients below it. It is in the context of the
// call, because that passes through all middleware.
package several

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/backend"
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

// Entry asks the Client below for an entry of a group, and not for a lock; see backend.Group.
type Entry struct {
	// Name is that of the group. Middleware may put something before or after it, and may acquire other locks with the
	// same context.
	Name string

	Wants backend.Group

	mu      sync.Mutex
	granted []granted
}

// granted is what a Client has acquired for the call.
type granted struct {
	fence   uint64
	permits []int
}

// Granted records that a Client has acquired an entry with that fencing token, and with those permits.
func (e *Entry) Granted(fence uint64, permits []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.granted = append(e.granted, granted{fence, permits})
}

// Of returns the permits of the lease with that fencing token, and whether it is an entry of the group. A middleware
// may acquire more than once, also at the same time, and return one of the leases. If it has changed the token, they
// are those of the last one.
func (e *Entry) Of(fence uint64) (permits []int, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.granted {
		if permits = g.permits; g.fence == fence {
			break
		}
	}
	return permits, len(e.granted) > 0
}

type entryKey struct{}

// With returns a context for the call.
func (e *Entry) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, entryKey{}, e)
}

// What the name of a group has behind that of its key.
const (
	PermitsOf = "permits"
	LocksOf   = "rw" // readers and writers
)

// NamesGroup reports whether key is the name of a group of permits, or one of locks, as package slots makes them.
func NamesGroup(key, of string) bool {
	return strings.HasSuffix(key, "}#"+of) || strings.HasSuffix(key, "##"+of) || strings.HasSuffix(key, "##:"+of)
}

// ForLocks returns a context for calls that acquire locks, whatever the call asks for that ctx belongs to: their names
// may have that of its group in them.
func ForLocks(ctx context.Context) context.Context {
	if ctx.Value(entryKey{}) == nil {
		return ctx
	}
	return (*Entry)(nil).With(ctx)
}

// EntryFrom returns what a call with the context ctx asks for, or nil if key is that of a lock.
func EntryFrom(ctx context.Context, key string) *Entry {
	e, _ := ctx.Value(entryKey{}).(*Entry)
	if e == nil || !strings.Contains(key, e.Name) {
		return nil
	}
	return e
}

// Extension is what the holder of a lock of a group wants of a call of Extend beside more time: that it becomes a
// shared one, or to know whether others wait. Only the Client below knows both. A middleware that forgets the context
// of its caller makes it an ordinary call, which Heard tells.
type Extension struct {
	Share bool

	heard, wanted atomic.Bool
}

type extensionKey struct{}

// With returns a context for the call.
func (x *Extension) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, extensionKey{}, x)
}

// ExtensionFrom returns the Extension of the call of Extend that ctx belongs to, or nil.
func ExtensionFrom(ctx context.Context) *Extension {
	x, _ := ctx.Value(extensionKey{}).(*Extension)
	return x
}

// Hear records that the Client knows of it.
func (x *Extension) Hear() { x.heard.Store(true) }

// Want records that others wait.
func (x *Extension) Want() { x.wanted.Store(true) }

// Heard reports whether the Client knows of it.
func (x *Extension) Heard() bool { return x.heard.Load() }

// Wanted reports whether others wait.
func (x *Extension) Wanted() bool { return x.wanted.Load() }

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
