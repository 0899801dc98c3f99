package locker

import (
	"context"
	"slices"
)

// Middleware wraps a Locker to add behaviour such as tracing, retries or default options. The Locker that it returns
// should have a method Unwrap() Locker that returns the wrapped one, so that [As] can find what that implements. It
// passes on the options, and the context of its caller, or one that is made of that, as by context.WithTimeout:
// packages of this library, such as once and semaphore, say in its values what a call is about.
type Middleware func(Locker) Locker

// Wrap wraps l in the given middleware. The first is the outermost: Wrap(l, a, b) is a(b(l)), and a call passes through
// a, then b, then l. Without middleware, Wrap returns l.
func Wrap(l Locker, outermostFirst ...Middleware) Locker {
	for i := len(outermostFirst) - 1; i >= 0; i-- {
		l = outermostFirst[i](l)
	}
	return l
}

// As returns the first Locker that implements T in the chain of l. The chain consists of l followed by the Lockers
// obtained by repeatedly calling its method Unwrap() Locker. Use As to find an optional interface behind middleware:
//
//	if c, ok := locker.As[io.Closer](l); ok {
//		defer c.Close()
//	}
func As[T any](l Locker) (T, bool) {
	for l != nil {
		if t, ok := l.(T); ok {
			return t, true
		}
		u, ok := l.(interface{ Unwrap() Locker })
		if !ok {
			break
		}
		l = u.Unwrap()
	}
	var zero T
	return zero, false
}

// LeaseAs returns the first Lease that implements T in the chain of l. The chain consists of l followed by the Leases
// obtained by repeatedly calling its method Unwrap() Lease. It is As for leases.
func LeaseAs[T any](l Lease) (T, bool) {
	for l != nil {
		if t, ok := l.(T); ok {
			return t, true
		}
		u, ok := l.(interface{ Unwrap() Lease })
		if !ok {
			break
		}
		l = u.Unwrap()
	}
	var zero T
	return zero, false
}

// Defaults returns a middleware that applies opts to every call. The options of the call are applied after opts and
// override them.
func Defaults(opts ...Option) Middleware {
	opts = slices.Clip(slices.Clone(opts)) // independent of the caller's slice, and copied if anybody appends to it
	return func(next Locker) Locker { return &defaults{next, opts} }
}

type defaults struct {
	next Locker
	opts []Option
}

func (d *defaults) Unwrap() Locker { return d.next }

func (d *defaults) Lock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	return d.next.Lock(ctx, key, d.before(opts)...)
}

func (d *defaults) TryLock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	return d.next.TryLock(ctx, key, d.before(opts)...)
}

// TryLockMany implements [ManyLocker].
func (d *defaults) TryLockMany(ctx context.Context, m Many, opts ...Option) ([]Lease, error) {
	return TryLockMany(ctx, d.next, m, d.before(opts)...)
}

func (d *defaults) before(opts []Option) []Option {
	if len(opts) == 0 {
		return d.opts
	}
	all := make([]Option, 0, len(d.opts)+len(opts))
	return append(append(all, d.opts...), opts...)
}
