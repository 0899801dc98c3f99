package conform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/inspect"
)

// learn makes a harness without a Store. What the store can do it states; how coarse its time is two Lockers find out.
// remove takes a lock away from its holder, and is nil if that is not possible.
func (d Deployment) learn(ctx context.Context) (
	h conformance.Harness, remove func(n int, key string) error, err error,
) {
	if d.Delete != nil {
		return h, d.Delete, nil // on Redis
	}
	a, err := d.Open(0)
	if err != nil {
		return h, nil, err
	}
	defer closeLocker(a)
	b, err := d.Open(0)
	if err != nil {
		return h, nil, err
	}
	defer closeLocker(b)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if h.MinTTL, h.Granularity, err = coarseness(ctx, a, b); err != nil {
		return h, nil, fmt.Errorf("how coarse the store's time is: %w", err)
	}
	if i, ok := locker.As[inspect.Inspector](a); ok {
		if _, err := i.Inspect(ctx, key); !errors.Is(err, errors.ErrUnsupported) {
			remove = d.forceRelease
		}
	}
	return h, remove, nil
}

// limit bounds what is not part of a property.
const limit = 30 * time.Second

// key is that of the lock by which coarseness learns.
const key = "k"

// coarseness returns the smallest TTL that the store takes, and the unit in which it counts time, or 0 if they are
// small. A store that counts in seconds may refuse less than that, or round it up.
func coarseness(ctx context.Context, a, b locker.Locker) (least, unit time.Duration, err error) {
	const small, largest = 100 * time.Millisecond, 5 * time.Second
	for _, least = range []time.Duration{small, time.Second, largest} {
		began := time.Now()
		// Lock, because an attempt before this one may be in doubt: a request has a part of the TTL to be answered.
		lease, err := a.Lock(ctx, key, locker.TTL(least), locker.NoRenewal())
		if errors.Is(err, locker.ErrInvalid) || errors.Is(err, locker.ErrUnavailable) && least < largest {
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		next, err := b.Lock(ctx, key)
		took := time.Since(began)
		_ = lease.Unlock(ctx) // ends it here, too
		if err != nil {
			return 0, 0, err
		}
		if err := next.Unlock(ctx); err != nil {
			return 0, 0, err
		}
		if least == small && took < 5*small {
			return 0, 0, nil
		}
		break
	}
	return max(least, time.Second), time.Second, nil
}

// forceRelease takes a lock away from its holder.
func (d Deployment) forceRelease(n int, key string) error {
	l, err := d.Open(n)
	if err != nil {
		return err
	}
	defer closeLocker(l)
	i, _ := locker.As[inspect.Inspector](l)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if _, err = i.ForceRelease(ctx, key, ""); errors.Is(err, locker.ErrNotHeld) {
		return nil
	}
	return err
}

func closeLocker(l locker.Locker) {
	if c, ok := locker.As[io.Closer](l); ok {
		_ = c.Close()
	}
}
