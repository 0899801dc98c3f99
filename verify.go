package locker

import (
	"context"
	"errors"
	"fmt"
)

var errNoVerifier = fmt.Errorf("the backend cannot verify leases: %w", errors.ErrUnsupported)

// Verify asks the store whether lease still has its lock, for example before the commit of what was done under the
// lock. It makes one round trip and changes nothing.
//
// A nil error proves that when Verify was called, the store had issued no fencing token for the key past those that it
// had granted for the lease: nobody had been given the lock after this holder. The proof does not depend on the time,
// as [Lease.Err] does. It holds even if locks expired early, messages were late, or the process was stopped. It needs
// only that no node that answers has forgotten what it granted. On a store of several nodes, the proof comes from a
// majority of them. The lease had also not ended when the answer arrived.
//
// The proof is about the past. A process that is stopped between Verify and its commit may find another holder when it
// goes on. Only a resource that compares tokens refuses such a commit; see [Lease.Fence].
//
// If the store answers that the lock belongs to the lease no longer, the lease ends as lost. Errors match:
//
//   - [ErrLost], if the lease is lost. If it had ended before, nothing is sent.
//   - [ErrUnlocked], if the lease was unlocked.
//   - [ErrUnavailable], if the store did not answer, or if too few nodes did that can prove it. The lock may still
//     belong to the lease. On several nodes this includes those that granted late with a greater token, or that got the
//     lock back while it was held.
//   - ctx's error, if ctx ended.
//   - errors.ErrUnsupported, if the backend is not a [backend.Verifier], or if middleware hides the lease.
//
// Verify finds the lease behind middleware by a method Unwrap() Lease of the leases that wrap it.
func Verify(ctx context.Context, lease Lease) error {
	if v, ok := LeaseAs[verifiable](lease); ok {
		return v.Verify(ctx)
	}
	return &Error{"verify", lease.Key(), errNoVerifier}
}

// verifiable is a Lease that can be verified.
type verifiable interface {
	Verify(ctx context.Context) error
}

var errNoBinder = fmt.Errorf("the backend binds nothing to its locks: %w", errors.ErrUnsupported)

// Bind binds something to the lock of lease, such as a transaction that takes effect only while the lock belongs to the
// lease. The argument to says what it is. It is for packages of backends, whose own functions make to, such as
// postgreslock.InTx and etcdlock.Condition. Programs call those.
//
// Leases that callers of one [Client] hand over to each other have one owner value in the store. What was bound to one
// of them could take effect under the next, so the lock of lease is not handed over any more from the call on.
//
// Bind finds the lease behind middleware, and binds to to each lock of several, as [Verify] does. Errors are those of
// Verify, and match errors.ErrUnsupported also if the backend is not a [backend.Binder] or does not know the type of
// to.
func Bind(ctx context.Context, lease Lease, to any) error {
	if b, ok := LeaseAs[bindable](lease); ok {
		return b.Bind(ctx, to)
	}
	return &Error{"verify", lease.Key(), errNoBinder}
}

// bindable is a Lease to whose lock something can be bound.
type bindable interface {
	Bind(ctx context.Context, to any) error
}
