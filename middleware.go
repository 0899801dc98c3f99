package locker

import (
	"context"
	"slices"
)

// Middleware adds something to a Locker: tracing, retries, defaults. What it returns should have a method
// Unwrap() Locker, so that [As] sees through it.
type Middleware func(Locker) Locker

// Wrap puts the middlewares around l. The first is the outermost: Wrap(l, a, b) is a(b(l)), and a call passes a, then
// b, then l. With none it returns l.
func Wrap(l Locker, outermostFirst ...Middleware) Locker {
	for i := len(outermostFirst) - 1; i >= 0; i-- {
		l = outermostFirst[i](l)
	}
	return l
}

// As finds the first Locker in the chain, from the outside in, that implements T, following Unwrap() Locker. It is
// how a capability is reached whatever middleware stands before it:
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

// Defaults is a middleware that applies opts to every call, before the call's own options, which therefore win.
func Defaults(opts ...Option) Middleware {
	opts = slices.Clip(slices.Clone(opts)) // the caller may go on using its own, and whoever appends to ours copies it
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

func (d *defaults) before(opts []Option) []Option {
	if len(opts) == 0 {
		return d.opts
	}
	all := make([]Option, 0, len(d.opts)+len(opts))
	return append(append(all, d.opts...), opts...)
}
