package retry

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// New returns a middleware that retries, as described in the package comment. All Lockers that it wraps share one
// [PerSecond].
func New(opts ...Option) locker.Middleware {
	p := policy{}
	for _, opt := range opts {
		opt(&p)
	}
	p.fill()
	return func(next locker.Locker) locker.Locker { return &retrier{next, locker.Draining(next), &p} }
}

// fill sets the defaults.
func (p *policy) fill() {
	if p.limit <= 0 {
		p.limit = DefaultFor
	}
	if p.base <= 0 {
		p.base = DefaultBaseDelay
	}
	if p.maxDelay <= 0 {
		p.maxDelay = DefaultMaxDelay
	}
	if p.perSecond <= 0 {
		p.perSecond = DefaultPerSecond
	}
	p.bucket = &bucket{interval: burst / time.Duration(p.perSecond)}
}

type retrier struct {
	next   locker.Locker
	drains <-chan struct{} // see locker.Draining
	*policy
}

func (r *retrier) Unwrap() locker.Locker { return r.next }

func (r *retrier) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	start := time.Now()
	l, err := r.next.Lock(ctx, key, opts...)
	if err != nil {
		if !fault(err) {
			return nil, err
		}
		c := &call{policy: r.policy, ctx: ctx, over: r.drains, start: start}
		// If the call was woken, the store had answered that another owner holds the lock. WakeFront is an exception: it
		// only concerns the callers of the same Client.
		var answered atomic.Bool
		traced := lockertrace.With(ctx, &lockertrace.Trace{Woken: func(w lockertrace.Wake) {
			if w.Reason != lockertrace.WakeFront {
				answered.Store(true)
			}
		}})
		err = c.run(err, fault, func() (err error) {
			if l, err = r.next.Lock(traced, key, opts...); err != nil && answered.Swap(false) {
				c.anew()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return &lease{l, r.policy}, nil
}

func (r *retrier) TryLock(ctx context.Context, key string, opts ...locker.Option) (l locker.Lease, err error) {
	err = r.try(ctx, func() (err error) {
		l, err = r.next.TryLock(ctx, key, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &lease{l, r.policy}, nil
}

// TryLockMany implements [locker.ManyLocker]. A step is retried as a whole, like TryLock.
func (r *retrier) TryLockMany(
	ctx context.Context, m locker.Many, opts ...locker.Option,
) (leases []locker.Lease, err error) {
	err = r.try(ctx, func() (err error) {
		leases, err = locker.TryLockMany(ctx, r.next, m, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, l := range leases {
		if l != nil {
			leases[i] = &lease{l, r.policy}
		}
	}
	return leases, nil
}

// try makes one attempt, and repeats it after faults.
func (r *retrier) try(ctx context.Context, attempt func() error) error {
	start := time.Now()
	err := attempt()
	if err == nil || !fault(err) && !(r.onHeld && errors.Is(err, locker.ErrHeld)) {
		return err
	}
	var held time.Time // when the store first answered "held" after a fault
	retryable := func(err error) bool {
		switch {
		case !errors.Is(err, locker.ErrHeld):
			return fault(err)
		case r.onHeld:
			return true
		case held.IsZero():
			held = time.Now()
		}
		return time.Since(held) < ghost
	}
	c := &call{policy: r.policy, ctx: ctx, over: r.drains, start: start}
	return c.run(err, retryable, attempt)
}

// lease is a Lease whose Extend and Unlock are retried.
type lease struct {
	locker.Lease
	*policy
}

// Unwrap returns the wrapped Lease, for [locker.Verify].
func (l *lease) Unwrap() locker.Lease { return l.Lease }

// Extend retries until the lease ends. When Done is closed, Extend of the wrapped lease returns the reason without a
// request to the store.
func (l *lease) Extend(ctx context.Context, opts ...locker.Option) error {
	start := time.Now()
	err := l.Lease.Extend(ctx, opts...)
	if err == nil || !fault(err) {
		return err
	}
	c := &call{policy: l.policy, ctx: ctx, over: l.Done(), start: start}
	return c.run(err, fault, func() error { return l.Lease.Extend(ctx, opts...) })
}

func (l *lease) Unlock(ctx context.Context) error {
	start, until := time.Now(), l.Until() // read before Unlock, which ends the lease
	err := l.Lease.Unlock(ctx)
	if err == nil || !fault(err) {
		return err
	}
	// ErrUnlocked means that an earlier try or another call has released the lock. It is not certain that this was in
	// time, so the call returns the last fault. ErrUnlocked would be wrong, because this call has not succeeded before.
	settled := false
	retryable := func(err error) bool { return !settled && fault(err) }
	c := &call{policy: l.policy, ctx: ctx, latest: until, start: start}
	return c.run(err, retryable, func() error {
		again := l.Lease.Unlock(ctx)
		if settled = errors.Is(again, locker.ErrUnlocked); !settled {
			err = again
		}
		return err
	})
}
