package locker

import (
	"context"
	"time"
)

// Locker acquires locks by name. All methods are safe for concurrent use.
//
// The interface has only two methods, so that tests can fake it and middleware can wrap it. Use [As] to find what else
// an implementation provides, such as io.Closer or inspect.Inspector.
type Locker interface {
	// Lock acquires key. While another owner holds the lock, Lock waits until ctx ends. ctx bounds only the waiting:
	// the lease that Lock returns outlives ctx.
	//
	// If the store fails before Lock has seen the lock held, Lock returns the error at once. While Lock waits, it
	// tolerates a failing store for some time, because servers restart; see [Patience].
	//
	// Errors are of type [*Error] and match, with errors.Is, one of:
	//
	//   - ctx's error, if ctx ended. The error then also matches the result of the last contact with the store:
	//     [ErrHeld] if the lock was held, or [ErrUnavailable] if the store failed or did not answer for a second. While
	//     other callers of the same Client are ahead, their contacts count, once they are answered or have timed out.
	//     Before the first contact, the error matches neither.
	//   - [ErrUnavailable], if the store cannot be reached, does not answer, or refuses.
	//   - [ErrInvalid], if the key or an option cannot be used.
	//   - [ErrReentrant], if ctx carries a lease of this lock, as [Do] gives it to its function: locks are not re-entrant.
	//   - [ErrForeignKey], if the key holds something that is not a lock.
	//   - [ErrClosed], if the Locker is closed, and [ErrDraining] as well, if it was only told to drain.
	//
	// If the outcome of an attempt is unknown, the attempt is undone in the background.
	Lock(ctx context.Context, key string, opts ...Option) (Lease, error)

	// TryLock makes one attempt to acquire key. If another owner holds the lock, the error matches [ErrHeld]. It is
	// then a [*HeldError] with the label of the holder and the remaining time of the lock, as far as the store knows
	// them. Otherwise TryLock is like Lock.
	TryLock(ctx context.Context, key string, opts ...Option) (Lease, error)
}

// Lease is one acquisition of a lock. It ends when it is unlocked, when it is lost, or when its [Client] is closed. A
// Lease is never used again for another acquisition. All methods are safe for concurrent use.
//
// Middleware that changes one method should embed the Lease that it wraps. Methods that are added later then pass
// through. It should also have a method Unwrap() Lease that returns the wrapped Lease, so that [Verify] and
// [Wanted] find it.
type Lease interface {
	// Key returns the name of the lock, as it was passed to Lock.
	Key() string

	// Token returns the owner value: a random string that is unique to what the store has granted. The store compares
	// it before it extends or deletes the lock. Leases that callers of one Client hand over to each other have the same;
	// see [NoLocalHandover]. A client that has the token can release the lock, so keep it out of logs and traces.
	Token() string

	// Fence returns the fencing token. It is greater than the tokens of all earlier acquisitions of the key on this
	// store. Gaps between tokens are normal. 0 means that the store does not issue tokens.
	Fence() uint64

	// Until returns the end of the validity, as a time with a monotonic clock reading. Nobody else can acquire the lock
	// before that time. The validity is measured from before the request was sent, and is shortened by an allowance for
	// clock drift. Extending the lease moves Until, but never beyond the limit of [MaxHold]. After the lease has ended,
	// Until is not later than the time at which it ended.
	Until() time.Time

	// Done returns a channel that is closed when the lease ends. If the lease is lost, the channel is closed no later
	// than Until.
	Done() <-chan struct{}

	// Err returns nil while the lease is held. Afterwards it returns [ErrUnlocked], or a [*LostError], which matches
	// [ErrLost]. Err reads the monotonic clock and the wall clock, which goes on while the machine is suspended. Its
	// answer is therefore correct even if the process has just woken from a pause.
	Err() error

	// Extend sets the end of the lease to a full TTL from now. It never shortens the lease. Leases renew themselves by
	// default. Extend is for leases with [NoRenewal]. To confirm the lock before a critical step, use [Verify].
	//
	// The option [TTL] gives the lease another TTL: it ends that long from now, and renewals keep to the new TTL from
	// then on. A smaller TTL shortens nothing that the lease already has: neither Until nor the lock in the store ends
	// earlier than before. If the call fails, later renewals keep to the old TTL, and the lock may have been extended
	// nevertheless. Extend has no other options. A Lease that is not from a [Client] may ignore the option.
	//
	// Extend returns when the lease ends, if not before. Errors match:
	//
	//   - [ErrInvalid], if the TTL is out of range or above the limit of a restart guard, or if another option was given.
	//     The lease is as before.
	//   - [ErrLost], if the lease is lost.
	//   - [ErrUnlocked], if the lease was unlocked.
	//   - [ErrUnavailable], if the store did not answer. The lock may have been extended, but Until is unchanged.
	//   - ctx's error, if ctx ended.
	Extend(ctx context.Context, opts ...Option) error

	// Unlock releases the lock. It works even if ctx has already ended, as is common in deferred calls: Unlock uses
	// only the values of ctx. It waits at most one second for the store's answer. If there is no answer by then, the
	// release goes on in the background.
	//
	// A nil error means that the store still had the lock for this lease and has released it, or will release it at the
	// end of [MinHold]. Unlock can return nil even after Err has reported a loss, if the lease has expired and the store
	// still had the lock. docs/safety.md says what a nil error proves on a store of several nodes. If another caller of
	// the Client waits for the lock, Unlock may hand it over without asking the store; see [NoLocalHandover]. A nil error
	// then means that the validity of the lease was not over, and that the store had answered for the lock in the 50 ms
	// before. What has happened to it since then is not known.
	//
	// Errors match:
	//
	//   - [ErrNotHeld] and [ErrLost], if the lock was no longer held. Access was not exclusive until the end.
	//   - [ErrUnavailable], if the outcome is unknown. Call Unlock again to find it out. This error says nothing about
	//     the work that the lock protected, so it is no reason to repeat that.
	//   - [ErrUnlocked], if an earlier call of Unlock has found out the outcome and returned it.
	Unlock(ctx context.Context) error
}
