package locker

import (
	"context"
	"errors"
)

// Do runs f while holding key: it locks, as [Locker.Lock] does, calls f, and unlocks, also if f panics.
//
// The context f gets ends when the lock is lost, and context.Cause then returns the [*LostError]; it carries the
// lease, for its fencing token (see [LeaseFrom]). f should return soon after: nothing but its own care keeps it from
// acting without the lock.
//
// Do returns f's error. If the lock was lost while f ran, or could not be released, that is joined to it, so a nil error
// means that f succeeded and held the lock all the time.
func Do(ctx context.Context, l Locker, key string, f func(ctx context.Context) error, opts ...Option) (err error) {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	held, cancel := context.WithCancelCause(context.WithValue(ctx, leaseKey{}, lease))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-lease.Done():
			cancel(lease.Err())
		case <-held.Done():
		}
	}()
	defer func() {
		lost := lease.Err()
		cancel(nil)
		<-watched
		unlocked := lease.Unlock(ctx)
		if errors.Is(lost, ErrLost) && !errors.Is(unlocked, ErrLost) {
			err = errors.Join(err, &Error{"do", key, lost})
		}
		err = errors.Join(err, unlocked)
	}()
	return f(held)
}

type leaseKey struct{}

// LeaseFrom returns the lease under which ctx runs, if it is the context of a [Do] or derived from one.
func LeaseFrom(ctx context.Context) (Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(Lease)
	return l, ok
}
