package locker

import (
	"context"
	"errors"
)

// Do runs f while holding key: it locks, as [Locker.Lock] does, calls f, and unlocks, also if f panics.
//
// The context f gets ends when the lock is lost, and context.Cause then returns the [*LostError]; it carries the
// lease, for its fencing token (see [LeaseFrom]). f should return soon after: nothing but its own care keeps it from
// acting without the lock. Its Err looks at the clocks, as that of a [Lease] does, so it is right even if the process has
// just woken from a pause; contexts with a deadline or a cancel function of their own that are derived from it follow a
// moment later.
//
// Do returns f's error. If the lock was lost while f ran, or could not be released, that is joined to it, so a nil error
// means that f succeeded and held the lock all the time.
func Do(ctx context.Context, l Locker, key string, f func(ctx context.Context) error, opts ...Option) (err error) {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(ctx)
	held := &heldContext{inner, lease, cancel}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-lease.Done():
			cancel(lease.Err())
		case <-inner.Done():
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

// heldContext is a context that ends with a lease. The goroutine that ends it may not have had its turn yet when a process
// wakes from a pause, so whoever asks the context asks the lease first.
type heldContext struct {
	context.Context
	lease  Lease
	cancel context.CancelCauseFunc
}

// look ends the context if the lease has ended.
func (c *heldContext) look() {
	if err := c.lease.Err(); err != nil {
		c.cancel(err) // without effect after the first time
	}
}

func (c *heldContext) Err() error {
	c.look()
	return c.Context.Err()
}

func (c *heldContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c *heldContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c.lease
	}
	c.look() // before Go 1.26 context.Cause asks nothing else
	return c.Context.Value(key)
}

type leaseKey struct{}

// LeaseFrom returns the lease under which ctx runs, if it is the context of a [Do] or derived from one.
func LeaseFrom(ctx context.Context) (Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(Lease)
	return l, ok
}
