package placestest

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/golocker/locker"
)

// Opaque is a middleware whose leases have no Unwrap.
func Opaque(l locker.Locker) locker.Locker { return opaque{l} }

type opaque struct{ locker.Locker }

func (o opaque) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return hidden(o.Locker.Lock(ctx, key, opts...))
}

func (o opaque) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return hidden(o.Locker.TryLock(ctx, key, opts...))
}

func hidden(l locker.Lease, err error) (locker.Lease, error) {
	if err != nil {
		return nil, err
	}
	return struct{ locker.Lease }{l}, nil
}

// Hashing is a middleware that makes other names of all.
func Hashing(l locker.Locker) locker.Locker { return hashing{l} }

type hashing struct{ locker.Locker }

func (h hashing) Unwrap() locker.Locker { return h.Locker }

func (h hashing) name(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

func (h hashing) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return h.Locker.Lock(ctx, h.name(key), opts...)
}

func (h hashing) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return h.Locker.TryLock(ctx, h.name(key), opts...)
}

// Hedging is a middleware that acquires twice and keeps the first lease.
func Hedging(l locker.Locker) locker.Locker { return hedging{l} }

type hedging struct{ locker.Locker }

func (h hedging) Unwrap() locker.Locker { return h.Locker }

func (h hedging) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	first, err := h.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	if second, err := h.Locker.TryLock(ctx, key, opts...); err == nil {
		_ = second.Unlock(ctx)
	}
	return first, nil
}

// Forgetful is a middleware that does not pass on the context of its caller to TryLock, nor to Extend.
func Forgetful(l locker.Locker) locker.Locker { return forgetful{l} }

type forgetful struct{ locker.Locker }

func (f forgetful) Unwrap() locker.Locker { return f.Locker }

func (f forgetful) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := f.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return forgetfulLease{lease}, nil
}

func (f forgetful) TryLock(_ context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return f.Locker.TryLock(context.Background(), key, opts...)
}

type forgetfulLease struct{ locker.Lease }

func (f forgetfulLease) Unwrap() locker.Lease { return f.Lease }

func (f forgetfulLease) Extend(_ context.Context, opts ...locker.Option) error {
	return f.Lease.Extend(context.Background(), opts...)
}
