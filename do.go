package locker

import (
	"context"
	"errors"
	"slices"

	"github.com/golocker/locker/internal/core/several"
)

// Do calls f while it holds the lock of key. It acquires the lock as [Locker.Lock] does, and unlocks it when f returns
// or panics.
//
// The context passed to f ends when the lock is lost; see [WithLease]. f should return soon after that, because nothing
// prevents it from going on without the lock.
//
// A nil error means that f returned nil, and that the store still had the lock for f when it was released. So f has
// held it all the time. The store is not asked if the lock is handed over to another caller of the [Client]; see
// [NoLocalHandover]. A nil error then means that the validity was not over, and that the store had answered in the 50
// ms before. If the lock was deleted, taken by force or forgotten by the store in these 50 ms, somebody else may have
// held it meanwhile. If that matters, f calls [Verify] before it commits, or shows its fencing token.
//
// Otherwise the error is that of Lock, and f was not called, or it joins some of these:
//
//   - the error of f,
//   - one that matches [ErrLost], if the lock was lost while f ran,
//   - one that matches [ErrReleaseUnknown], if it is not known whether the lock was released. This says nothing of f.
//
// So an error that matches [ErrUnavailable] means that f was not called, unless f returned it. To call Do again is safe
// then.
func Do(ctx context.Context, l Locker, key string, f func(ctx context.Context) error, opts ...Option) error {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return under(ctx, lease, f)
}

// TryDo is like [Do], but makes one attempt to acquire the lock, as [Locker.TryLock] does. If another owner holds the
// lock, f is not called, and the error matches [ErrHeld]. It is for work that somebody else does otherwise:
//
//	err := locker.TryDo(ctx, l, "report", report)
//	if errors.Is(err, locker.ErrHeld) {
//		return nil // another process is at it
//	}
//
// An error of f that matches ErrHeld looks the same.
func TryDo(ctx context.Context, l Locker, key string, f func(ctx context.Context) error, opts ...Option) error {
	lease, err := l.TryLock(ctx, key, opts...)
	if err != nil {
		return err
	}
	return under(ctx, lease, f)
}

// under calls f with a context that ends with lease, and unlocks lease when f returns or panics.
func under(ctx context.Context, lease Lease, f func(ctx context.Context) error) (err error) {
	held, cancel := WithLease(ctx, lease)
	defer func() {
		var lost error
		defer func() { // also if Err panics in a hook
			cancel()
			unlocked := lease.Unlock(ctx)
			if errors.Is(lost, ErrLost) && !errors.Is(unlocked, ErrLost) {
				err = errors.Join(err, &Error{"do", lease.Key(), lost})
			}
			if errors.Is(unlocked, ErrUnavailable) {
				unlocked = &Error{"unlock", lease.Key(), &unknownRelease{unlocked}}
			}
			err = errors.Join(err, unlocked)
		}()
		lost = lease.Err()
	}()
	return f(held)
}

// WithLease returns a copy of parent that ends when lease does, or when cancel is called, if parent does not end first.
// context.Cause then returns the error of lease, which is a [*LostError] if the lock was lost. Calling cancel releases
// a goroutine that waits for the end of the lease. It does not unlock lease. lease may be an [AllLease]:
//
//	lease, err := l.TryLock(ctx, key)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//	ctx, cancel := locker.WithLease(ctx, lease)
//	defer cancel()
//
// The context carries the lease; see [LeaseFrom]. Its Err method reads the clocks, as [Lease.Err] does. Its answer is
// therefore correct even if the process has just woken from a pause. Contexts derived from it that have a deadline or a
// cancel function end a moment later.
func WithLease(parent context.Context, lease Lease) (ctx context.Context, cancel context.CancelFunc) {
	inner, end := context.WithCancelCause(parent)
	go func() {
		select {
		case <-lease.Done():
			end(lease.Err())
		case <-inner.Done():
		}
	}()
	return &heldContext{inner, lease, end}, func() { end(nil) }
}

// heldContext is a context that ends with a lease. When the process wakes from a pause, code may use the context before
// the goroutine that cancels it has run. Err and Done therefore check the lease first.
type heldContext struct {
	context.Context
	lease  Lease
	cancel context.CancelCauseFunc
}

// check cancels the context if the lease has ended.
func (c *heldContext) check() {
	if err := c.lease.Err(); err != nil {
		c.cancel(err) // only the first call has an effect
	}
}

func (c *heldContext) Err() error {
	c.check()
	return c.Context.Err()
}

func (c *heldContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *heldContext) Value(key any) any {
	switch key := key.(type) {
	case leaseKey:
		return c.lease
	case several.Sought:
		if isOrHas(c.lease, key) {
			return c.lease
		}
		return c.Context.Value(key)
	}
	c.check() // before Go 1.26, context.Cause calls only Value
	return c.Context.Value(key)
}

type leaseKey struct{}

// carried is the key of a value that no context has: each lease that a context carries is shown to it. It gathers which
// of some locks of a Client are among them.
type carried struct {
	client     *Client
	keys, held []string
}

// Is implements several.Sought.
func (c *carried) Is(l any) bool {
	of, ok := l.(*lease)
	if ok && of.grant.client == c.client && slices.Contains(c.keys, of.Key()) && of.Err() == nil {
		c.held = append(c.held, of.Key())
	}
	return false
}

// isOrHas reports whether l is sought, or a lease behind it.
func isOrHas(l Lease, sought several.Sought) bool {
	for {
		if sought.Is(l) {
			return true
		}
		switch of := l.(type) {
		case *AllLease:
			return slices.ContainsFunc(of.parts, func(part Lease) bool { return isOrHas(part, sought) })
		case interface{ Unwrap() Lease }:
			l = of.Unwrap()
		default:
			return false
		}
	}
}

// carries returns of how many of the locks of keys ctx carries leases that have not ended.
func (c *Client) carries(ctx context.Context, keys ...string) int {
	own := carried{client: c, keys: keys}
	_ = ctx.Value(&own)
	slices.Sort(own.held)
	return len(slices.Compact(own.held))
}

// reentrant returns an error if a Lock of key would wait for its own caller, because ctx carries a lease of it, or
// blocks the gate that it is.
func (c *Client) reentrant(ctx context.Context, key string) error {
	if _, ok := LeaseFrom(ctx); ok && (c.carries(ctx, key) > 0 || c.blocks(ctx, key)) { // the first look allocates nothing
		return errReentrant
	}
	return nil
}

// blocks reports whether key is a gate, and ctx carries leases of more places behind it than the call can spare.
func (c *Client) blocks(ctx context.Context, key string) bool {
	gates := several.GatesFrom(ctx)
	return gates != nil && c.carries(ctx, gates.Behind(key)...) > gates.Spare
}

// LeaseFrom returns the lease that ctx carries. A context carries a lease if it is from [WithLease], as those
// that [Do] and [TryDo] pass to their functions are, or if it is derived from such a context.
func LeaseFrom(ctx context.Context) (Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(Lease)
	return l, ok
}
