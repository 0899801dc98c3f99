// Package passing has what package transfer tells the Clients below it. It is in the context of a call, because that
// passes through all middleware: to it, an export is an Unlock, and a resumption a TryLock.
package passing

import (
	"context"
	"crypto/rand"
	"strings"
	"sync/atomic"
	"time"
)

// mark begins the owner values of texts. Those of leases, which programs see, never have it.
const mark = "."

// OwnerLen is the length of the owner value of a text, and of others.
const OwnerLen = 27

// NewOwner returns a new owner value for a text.
func NewOwner() string { return mark + rand.Text() }

// IsOwner reports whether owner may be that of a text, and is none of a lease.
func IsOwner(owner string) bool { return len(owner) == OwnerLen && strings.HasPrefix(owner, mark) }

// Export asks for the lock of a lease to be passed on instead of released when the lease is unlocked.
type Export struct {
	Of  any           // the lease; middleware may unlock others with the same context
	To  string        // the owner value of the text
	TTL time.Duration // how long the lock stays taken; 0: for the TTL of the lease

	done atomic.Bool
}

type exportKey struct{}

// With returns a context for the call of Unlock.
func (x *Export) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, exportKey{}, x)
}

// ExportFrom returns what a call of Unlock of that lease with the context ctx exports, or nil.
func ExportFrom(ctx context.Context, lease any) *Export {
	x, _ := ctx.Value(exportKey{}).(*Export)
	if x == nil || x.Of != lease {
		return nil
	}
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

	sent, granted atomic.Bool
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

// Send records that the store was asked, and Sent reports it.
func (r *Resumption) Send() { r.sent.Store(true) }

// Sent reports whether Send was called.
func (r *Resumption) Sent() bool { return r.sent.Load() }

// Grant records that the store has granted it, and Granted reports it. A middleware that forgets the context of its
// caller acquires a free lock instead.
func (r *Resumption) Grant() { r.granted.Store(true) }

// Granted reports whether Grant was called.
func (r *Resumption) Granted() bool { return r.granted.Load() }
