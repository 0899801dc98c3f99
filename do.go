package locker

import (
	"context"
	"errors"
)

// Do calls f while it holds the lock of key. It acquires the lock as [Locker.Lock] does, and unlocks it when f returns
// or panics.
//
// The context passed to f carries the lease; see [LeaseFrom]. It ends when the lock is lost, and context.Cause then
// returns the [*LostError]. f should return soon after that, because nothing prevents it from going on without the
// lock. The Err method of this context reads the clocks, as [Lease.Err] does. Its answer is therefore correct even if
// the process has just woken from a pause. Contexts derived from it that have a deadline or a cancel function end a
// moment later.
//
// Do returns the error of f. If the lock was lost while f ran, or could not be released, that error is joined to it. A
// nil error means that f succeeded and held the lock all the time.
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

// heldContext is a context that ends with a lease. When the process wakes from a pause, code may use the context before
// the goroutine that cancels it has run. Err and Done therefore check the lease first.
type heldContext struct {
	context.Context
	lease  Lease
	cancel context.CancelCauseFunc
}

// look cancels the context if the lease has ended.
func (c *heldContext) look() {
	if err := c.lease.Err(); err != nil {
		c.cancel(err) // only the first call has an effect
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
	c.look() // before Go 1.26, context.Cause calls only Value
	return c.Context.Value(key)
}

type leaseKey struct{}

// LeaseFrom returns the lease that ctx carries. A context carries a lease if [Do] passed it to its function, or if it
// is derived from such a context.
func LeaseFrom(ctx context.Context) (Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(Lease)
	return l, ok
}
