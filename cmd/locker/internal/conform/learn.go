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

// known is what is known of a store: a harness without a Store, and how to remove a lock, if that is possible.
type known struct {
	conformance.Harness
	remove func(n int, key string) error
}

// learn returns what is known of the store. On Redis this is what the library promises. Elsewhere two Lockers find it
// out. They cannot find out whether the store promises an order of those that wait, so the properties of that are
// skipped.
func (d Deployment) learn(ctx context.Context) (known, error) {
	if r := d.Redis; r != nil {
		h := conformance.Harness{FIFO: !r.Redlock, Wanted: !r.Redlock, Labels: true, Verifies: true}
		return known{h, r.Delete}, nil
	}
	a, err := d.Open(0)
	if err != nil {
		return known{}, err
	}
	defer closeLocker(a)
	b, err := d.Open(0)
	if err != nil {
		return known{}, err
	}
	defer closeLocker(b)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var k known
	if k.Harness, err = try(ctx, a, b); err != nil {
		return known{}, fmt.Errorf("what the store can do: %w", err)
	}
	if i, ok := locker.As[inspect.Inspector](a); ok {
		if _, err := i.Inspect(ctx, key); !errors.Is(err, errors.ErrUnsupported) {
			k.remove = d.forceRelease
		}
	}
	return k, nil
}

// limit bounds what is not part of a property.
const limit = 30 * time.Second

// key is that of the lock by which try learns.
const key = "k"

// try returns what a store can do. a and b are Lockers of it.
func try(ctx context.Context, a, b locker.Locker) (h conformance.Harness, err error) {
	if h.MinTTL, h.Granularity, err = coarseness(ctx, a, b); err != nil {
		return h, err
	}
	const label = "locker conform"
	lease, err := a.TryLock(ctx, key, locker.Label(label))
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	h.Unfenced = lease.Fence() == 0
	h.Verifies = !errors.Is(locker.Verify(ctx, lease), errors.ErrUnsupported)
	_, err = b.TryLock(ctx, key)
	if held := (*locker.HeldError)(nil); errors.As(err, &held) {
		h.Labels = held.Label == label
	}
	h.Wanted = learnsOfWaiters(ctx, lease, b)
	return h, nil
}

// coarseness returns the smallest TTL that the store takes, and the unit in which it counts time, or 0 if they are
// small. A store that counts in seconds may refuse less than that, or round it up.
func coarseness(ctx context.Context, a, b locker.Locker) (least, unit time.Duration, err error) {
	const small = 100 * time.Millisecond
	for _, least = range []time.Duration{small, time.Second, 5 * time.Second} {
		began := time.Now()
		lease, err := a.TryLock(ctx, key, locker.TTL(least), locker.NoRenewal())
		if errors.Is(err, locker.ErrInvalid) {
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

// learnsOfWaiters reports whether the holder of a lease learns that l waits, with the answer to an Extend at the
// latest.
func learnsOfWaiters(ctx context.Context, lease locker.Lease, l locker.Locker) bool {
	wanted := locker.Wanted(lease)
	waiting, leave := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() {
		defer close(left)
		if lease, err := l.Lock(waiting, lease.Key()); err == nil {
			_ = lease.Unlock(ctx)
		}
	}()
	defer func() {
		leave()
		<-left
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 20 {
		select {
		case <-wanted:
			return true
		case <-tick.C:
		}
		if lease.Extend(ctx) != nil {
			break
		}
	}
	return false
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
