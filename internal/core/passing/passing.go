// Package passing has what package transfer tells the Clients below it. It is in the context of a call, because that
// passes through all middleware: to it, an export is an Unlock, and a resumption a TryLock.
package passing

import (
	"context"
	"strings"
	"sync/atomic"
	"time"
)

// Export asks for the lock of a lease to be passed on instead of released when the lease is unlocked.
type Export struct {
	To  string        // the owner value of the text
	TTL time.Duration // how long the lock stays taken; 0: for the TTL of the lease

	done atomic.Bool
}

type exportKey struct{}

// With returns a context for the call of Unlock.
func (x *Export) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, exportKey{}, x)
}

// ExportFrom returns the Export of the call of Unlock that ctx belongs to, or nil.
func ExportFrom(ctx context.Context) *Export {
	x, _ := ctx.Value(exportKey{}).(*Export)
	return x
}

// Pass records that the lock was passed on, and Passed reports it. A middleware that forgets the context of its caller
// has the lock released instead.
func (x *Export) Pass() { x.done.Store(true) }

// Passed reports whether Pass was called.
func (x *Export) Passed() bool { return x.done.Load() }

// Resumption asks for a lock that was passed on, and not for a free one.
type Resumption struct {
	Key  string // of the lock; middleware may put something before or after it, and may acquire other locks
	From string // the owner value of the text

	heard atomic.Bool
}

type resumptionKey struct{}

// With returns a context for the call of TryLock.
func (r *Resumption) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, resumptionKey{}, r)
}

// ResumptionFrom returns what a call with the context ctx resumes, or nil if key is that of another lock.
func ResumptionFrom(ctx context.Context, key string) *Resumption {
	r, _ := ctx.Value(resumptionKey{}).(*Resumption)
	if r == nil || !strings.Contains(key, r.Key) {
		return nil
	}
	return r
}

// Hear records that a Client knows of it.
func (r *Resumption) Hear() { r.heard.Store(true) }

// Heard reports whether a Client knows of it.
func (r *Resumption) Heard() bool { return r.heard.Load() }
