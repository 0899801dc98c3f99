package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
)

// badLease replaces methods of a lease. A nil function keeps the method.
type badLease struct {
	locker.Lease
	unlock, extend func(l locker.Lease, ctx context.Context) error
	until          func(l locker.Lease) time.Time
	err            func(l locker.Lease) error
	done           func(l locker.Lease) <-chan struct{}
	token, prefix  string // prefix is of the key
}

func (b *badLease) Unwrap() locker.Lease { return b.Lease }

func (b *badLease) Unlock(ctx context.Context) error {
	if b.unlock != nil {
		return b.unlock(b.Lease, ctx)
	}
	return b.Lease.Unlock(ctx)
}

func (b *badLease) Extend(ctx context.Context) error {
	if b.extend != nil {
		return b.extend(b.Lease, ctx)
	}
	return b.Lease.Extend(ctx)
}

func (b *badLease) Until() time.Time {
	if b.until != nil {
		return b.until(b.Lease)
	}
	return b.Lease.Until()
}

func (b *badLease) Err() error {
	if b.err != nil {
		return b.err(b.Lease)
	}
	return b.Lease.Err()
}

func (b *badLease) Done() <-chan struct{} {
	if b.done != nil {
		return b.done(b.Lease)
	}
	return b.Lease.Done()
}

func (b *badLease) Key() string { return b.prefix + b.Lease.Key() }

func (b *badLease) Token() string {
	if b.token != "" {
		return b.token
	}
	return b.Lease.Token()
}

// badLocker changes the arguments and results of Lock and TryLock.
type badLocker struct {
	locker.Locker
	ctx   func(context.Context) context.Context
	lease badLease
	err   func(error) error
	opts  []locker.Option
	// adjust replaces a TTL that is out of range
	adjust bool
}

type unwrapping struct{ *badLocker }

func (u unwrapping) Unwrap() locker.Locker { return u.Locker }

func bad(b badLocker) locker.Middleware {
	return func(next locker.Locker) locker.Locker {
		b := b
		b.Locker = next
		return unwrapping{&b}
	}
}

func (b *badLocker) call(ctx context.Context, key string, opts []locker.Option,
	f func(context.Context, string, ...locker.Option) (locker.Lease, error)) (locker.Lease, error) {
	if b.ctx != nil {
		ctx = b.ctx(ctx)
	}
	l, err := f(ctx, key, append(slices.Clip(opts), b.opts...)...)
	if err != nil && b.adjust && strings.Contains(err.Error(), "TTL") && !errors.Is(err, locker.ErrUnavailable) {
		l, err = f(ctx, key)
	}
	if err != nil {
		if b.err != nil {
			err = b.err(err)
		}
		return nil, err
	}
	lease := b.lease
	lease.Lease = l
	return &lease, nil
}

func (b *badLocker) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return b.call(ctx, key, opts, b.Locker.Lock)
}

func (b *badLocker) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return b.call(ctx, key, opts, b.Locker.TryLock)
}

// valueless is a context without the values of the one that it wraps.
type valueless struct{ context.Context }

func (valueless) Value(any) any { return nil }

// extendFlaws are mistakes of leases that are extended.
var extendFlaws = []flaw{
	{name: "Until stays where it was", fails: []string{"ExtendKeeps"}, wrapper: frozen},
	{name: "extend of an expired lease says nothing", fails: []string{"ExtendSparesSuccessor"},
		wrapper: bad(badLocker{lease: badLease{extend: func(l locker.Lease, ctx context.Context) error {
			if err := l.Extend(ctx); !expired(l) {
				return err
			}
			return nil
		}}})},
	{name: "extends without the values of the context", fails: []string{"ExtendTTLKeeps"},
		wrapper: bad(badLocker{lease: badLease{extend: func(l locker.Lease, ctx context.Context) error {
			return l.Extend(valueless{ctx})
		}}})},
	{name: "extend does nothing", fails: []string{"ExtendKeeps", "ExtendSparesSuccessor"}, broad: true,
		wrapper: bad(badLocker{lease: badLease{extend: func(locker.Lease, context.Context) error { return nil }}})},
}
