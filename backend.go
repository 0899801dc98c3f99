package locker

import (
	"context"
	"time"
)

// Backend is a store of locks, as its author implements it: one attempt per call, plain data in and out. Waiting,
// renewal, loss and release order are [Client]'s. All methods may be called concurrently.
//
// A Backend that is also an io.Closer is closed with its Client. conformance.RunBackend checks the rules below.
type Backend interface {
	// Acquire makes one attempt to lock req.Key for req.Token, for req.TTL from now.
	//
	//   - It returns a nil error only if the store has recorded req.Token as the owner, for at least req.TTL from when
	//     Acquire was called.
	//   - It is idempotent for its own token: executed twice (a client library may resend), it answers "granted" twice.
	//   - It matches ErrHeld (better: is a *HeldError) only if the store answered that somebody else is the owner, and
	//     ErrForeignKey if what it found is not a lock. It matches ErrInvalid if the store cannot have a lock of that name;
	//     then nothing was sent. Everything else matches ErrUnavailable.
	//   - It returns within milliseconds of ctx's end, whatever the store does.
	//   - When it fails it leaves nothing behind: if the outcome is unknown, it sees to it, after its return and
	//     after ctx's end if need be, that the attempt is undone even if it lands late. If that clean-up fails the
	//     store's TTL is the last resort.
	Acquire(ctx context.Context, req Request) (Grant, error)

	// Extend sets the end of a held lock to req.TTL from now.
	//
	//   - It never creates a lock and never shortens one.
	//   - It matches ErrNotHeld (better: is a *NotHeldError) only if the store answered that req.Token does not own the
	//     lock; any other error means
	//     that the outcome is unknown.
	//   - It returns within milliseconds of ctx's end.
	Extend(ctx context.Context, req Request) error

	// Release deletes the lock if req.Token owns it. If req.Keep is positive, the lock stays taken for that long from now,
	// by nobody: neither req.Token nor any other owner can extend or release it.
	//
	//   - It compares and deletes in one atomic step.
	//   - It matches ErrNotHeld (better: is a *NotHeldError) only if the store answered that req.Token does not own the
	//     lock. Any other error means
	//     that the outcome is unknown; the backend then goes on trying for a while by itself.
	//   - It returns within milliseconds of ctx's end.
	Release(ctx context.Context, req Request) error
}

// Queuer is what a [Backend] also is if it can wait by itself: it keeps those who wait in order, hands the lock over to the
// first, and tells it. The Client then calls Queue for Lock, and Acquire for TryLock.
type Queuer interface {
	// Queue is Acquire for a caller who waits: instead of ErrHeld it returns when it has been granted the lock, when
	// ctx ends, or when req.Closing is closed (with ErrClosed). Of one Client and key there is one call at a time. The
	// rules of Acquire hold, and:
	//
	//   - However the call ends without a grant, it leaves neither a lock nor a place in the queue behind; what was granted
	//     to it meanwhile goes to the next.
	//   - A lost message costs a delay, never a hang.
	//   - When ctx ends while another owner holds the lock, the error matches ErrHeld; but ErrUnavailable if the last
	//     contact with the store failed, or has gone unanswered for a second.
	//   - Once it waits, it bears a store that fails for req.Patience after the first contact that failed.
	//   - The Grant says when the request was sent that set the lock's TTL.
	//   - It calls req.Waiting when it begins to wait for another owner, and the hook Woken of the context's Trace after
	//     each sleep.
	Queue(ctx context.Context, req Request) (Grant, error)
}

// Notifier is what a [Backend] also is if it has no queue, but learns when a lock may have become free. It spares
// waiters most of their polling.
type Notifier interface {
	// Notify calls wake, which does not block, whenever key may have become free, and once when it is sure to be told of
	// that from then on (again: messages may have been lost before). live reports whether that is so now. It goes on until
	// stop is called; wake may be called once more after that.
	Notify(key string, wake func()) (live func() bool, stop func())
}

// Request says which lock a [Backend] should act on, and for whom.
type Request struct {
	Key   string        // 1 to MaxKey bytes, any bytes
	Token string        // the owner value of this acquisition: printable, fresh for every attempt
	TTL   time.Duration // MinTTL to MaxTTL
	Fence uint64        // Extend and Release: what Acquire granted; 0 for Acquire
	// Private is what Acquire returned in its Grant, for Extend and Release; nil for Acquire. The Client only carries it.
	Private any
	// Keep, for Release: how long the lock stays taken although it is released. 0: not at all.
	Keep time.Duration
	// Uncancelled, for Release: only its deadline ends the context of the call, so that the backend can wait inside a client
	// that keeps to deadlines and needs no goroutine to watch for a cancellation.
	Uncancelled bool
	// Closing, for Queue: closed when the Client is closed.
	Closing <-chan struct{}
	// Waiting, for Queue: to be called once when it is known that another owner holds the lock, with its remaining time
	// if that is known.
	Waiting func(remaining time.Duration)
	// Patience, for Queue: how long a store that fails is borne while the call waits. 0: not at all.
	Patience time.Duration
	// Failing, for Queue: to be called while the call waits, with the error of each contact with the store that failed and
	// when the first of them began since the last answer, and with nil when the store answers again. Other callers of the
	// Client that wait behind this one are told that, and their patience counts from then.
	Failing func(since time.Time, err error)
}

// Grant is what a successful Acquire returns.
type Grant struct {
	// Fence is greater than that of every earlier grant of the key. 0: the backend does not fence.
	Fence uint64
	// Private is for what the backend has to know about this grant later, such as which nodes gave it. Most need nothing.
	Private any
	// Sent is when the request was sent that set the lock's TTL. Zero: when Acquire or Queue was called, or later.
	Sent time.Time
	// Token is the owner value if it is not the request's: a Queuer that made several attempts took a new one for each, by
	// [NewToken]. Empty: the request's.
	Token string
}
