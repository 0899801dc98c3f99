package locker

import (
	"context"
	"time"
)

// Locker hands out locks by name. All methods are safe for concurrent use.
//
// The interface stays at two methods so that a test can fake it and middleware can wrap it; what else an
// implementation can do (io.Closer, …) is found with [As].
type Locker interface {
	// Lock acquires key, waiting for as long as ctx lasts while another owner holds it. A store that cannot be reached is
	// reported at once. While Lock waits, a store that fails is borne for some seconds, see [Patience], because servers
	// restart; then it is reported, too.
	//
	// ctx bounds the waiting only; the lease it returns outlives it. Errors are of type [*Error] and match, by
	// errors.Is: ctx's error if ctx ended, together with what the last contact with the store came to ([ErrHeld], or
	// [ErrUnavailable] if that failed, or has gone unanswered for a second);
	// [ErrUnavailable] if the store cannot be reached or refuses; [ErrInvalid]; [ErrForeignKey]; [ErrClosed]. An attempt
	// whose outcome is unknown is undone in the background.
	Lock(ctx context.Context, key string, opts ...Option) (Lease, error)

	// TryLock makes one attempt. If another owner holds key, the error matches [ErrHeld], and [HeldError] says for how
	// long at most, where the store knows. Otherwise it is like Lock.
	TryLock(ctx context.Context, key string, opts ...Option) (Lease, error)
}

// Lease is one acquisition of a lock. It ends by Unlock, by loss or with its Client, and is never reused. All
// methods are safe for concurrent use.
//
// Middleware that changes one method embeds the Lease it wraps, so that methods added later pass through.
type Lease interface {
	// Key returns the name that was locked, as it was given to Lock.
	Key() string

	// Token returns the owner value: random, unique to this acquisition, and what the store compares before it extends
	// or deletes. Whoever has it can release the lock: keep it out of logs and traces.
	Token() string

	// Fence returns the fencing token: greater than that of every earlier acquisition of the key on this store.
	// Compare tokens, do not count with them: gaps are normal. 0 means that the store does not issue tokens.
	Fence() uint64

	// Until returns the end of the validity, on the monotonic clock: until then nobody else can have acquired the
	// lock. It moves when the lease is extended. It is measured from before the request was sent and shortened by an
	// allowance for clock drift. With [MaxHold] it does not go beyond that. Once the lease has ended it is not later than
	// that moment.
	Until() time.Time

	// Done returns a channel that is closed when the lease ends: when Unlock is called, or when the lease is lost, then
	// no later than Until.
	Done() <-chan struct{}

	// Err returns nil while the lease is held. Afterwards it says why it ended: [ErrUnlocked], or a [*LostError] that
	// matches [ErrLost]. It looks at the clocks, the monotonic one and the one that goes on while the machine is suspended,
	// so it is right even if the process has just woken from a pause.
	Err() error

	// Extend prolongs the lease to a full TTL from now, never shortening it. Leases renew themselves by default; Extend
	// is for [NoRenewal], and for making sure of the lock before a step that must not be done without it.
	//
	// Errors match: [ErrLost] if the lease is lost, [ErrUnlocked] after Unlock, [ErrUnavailable] if the store did not
	// answer (the lease may or may not have been prolonged; Until is unchanged), ctx's error if ctx ended. Extend returns
	// when the lease ends, if not before.
	Extend(ctx context.Context) error

	// Unlock releases the lock. It works with a ctx that has already ended, as in a deferred call: the release is sent in
	// any case, and its answer is awaited for a second at most, whatever ctx says; ctx only lends its values. If there is
	// no answer by then, the release goes on in the background. A call that comes while another one is under way waits for
	// it, within the same bound.
	//
	// nil means that the store still had the lock as this lease's and, for all it knows, nobody else has had it since; now
	// it is free ([MinHold]: will be). That is the store's word, whatever Err says: a lease that has just expired, or that
	// reached its [MaxHold], may still be released in time. On Redlock it is no proof: where a node granted late, with a
	// counter ahead of the token, and locks vanished from nodes before their time, somebody may have had it meanwhile.
	//
	// Errors match: [ErrNotHeld] if it was not held any more, so that exclusive access was not guaranteed to the end (also
	// [ErrLost]); [ErrUnavailable] if the outcome is not known (call again if you must know), or if the store has nothing
	// under the key although the time is not over: somebody deleted it, or a proxy has sent the release twice;
	// [ErrUnlocked] if an earlier call released it, which is harmless.
	Unlock(ctx context.Context) error
}
