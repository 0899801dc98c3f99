package backend

import (
	"context"
	"time"

	"github.com/golocker/locker/lockertrace"
)

// Queuer is an optional interface that may be implemented by a [Backend] that keeps waiting callers in a queue. If not,
// the Client polls: it calls Acquire again until the lock is free.
//
// With a Queuer, Lock calls Queue, and TryLock calls Acquire.
type Queuer interface {
	// Queue is like Acquire, but waits instead of returning ErrHeld. It returns when the lock is granted, when ctx
	// ends, or with ErrClosed when the Client is closed or drained. A Client has at most one call of Queue per lock at a
	// time. The rules of Acquire apply, and in addition:
	//
	//   - If the call ends without a grant, it leaves neither a lock nor a queue position behind. A lock that was
	//     granted in the meantime goes to the next waiter.
	//   - A lost message causes a delay, but the call never hangs.
	//   - If ctx ends while another owner holds the lock, the error matches ErrHeld. If the last contact with the store
	//     failed, or has been unanswered for a second, it matches ErrUnavailable instead.
	//   - Once the call waits, it tolerates a failing store for its patience after the first contact that failed.
	//   - The Grant says when the request was sent that set the TTL of the lock.
	//   - After each contact with the store, the call calls wait.Held, Answered or Failed, and it sleeps by wait.Sleep.
	//     These methods decide when the call fails and with which error, as the rules above demand, and call the hooks of
	//     the context's lockertrace.Trace.
	//   - It draws as many fencing tokens as wait.Fences says, or fewer; see Grant.Fences.
	Queue(ctx context.Context, req Request, wait Wait) (Grant, error)
}

// Wait is what is known while a call of [Queuer.Queue] waits for a lock: whether another owner has the lock, and since
// when the store fails. It says how the wait goes on: for how long a failing store is tolerated, and with which error
// the call ends. It is from the Client, and the methods are for the goroutine that has called Queue, unless they say
// otherwise.
type Wait interface {
	// Held records an answer of the store: another owner has the lock, or waiters come before this call. From now on, the
	// call waits. held matches ErrHeld, and is preferably a *HeldError; nil says that not even this is known, as while a
	// store cannot tell. If it is nil, a fault that was recorded stays.
	Held(held error)

	// Answered records that the store has answered, whatever it was.
	Answered()

	// Failed records that a contact with the store that began at since has failed with err. If the call goes on, end is
	// nil, and the next contact is after pause. Otherwise end is the error to return.
	//
	// A call goes on if it waits, for its patience after the first contact that has failed since the last answer. If ctx
	// ended before the contact could be answered, the contact says nothing, and the error is what was seen before it. The
	// first pauses are short, because servers restart, and later ones are longer. If the store rests, the pause lasts
	// until it grants locks again, and a random time longer, so that waiters do not all ask at once.
	Failed(ctx context.Context, since time.Time, err error) (pause time.Duration, end error)

	// Sleep returns after d, or when news receives: true says that the store has handed the lock to this call, and false
	// that the lock may have become free. It calls the hook Woken then. If the call has to end instead, Sleep returns the
	// error of Ended. news may be nil.
	Sleep(ctx context.Context, d time.Duration, news <-chan bool) (handed bool, err error)

	// Ended returns nil while the call may go on. Otherwise it returns the error with which the call ends: ErrClosed, or
	// what the last contact with the store has shown if ctx has ended. What was shown before this call of Queue does not
	// count, because the store may have been silent for all of it.
	Ended(ctx context.Context) error

	// Limit bounds a contact by what is left of the patience, if the call waits: it returns most, or less.
	Limit(most time.Duration) time.Duration

	// Left returns how much is left of the patience, and whether the last contact with the store has failed. While the
	// store answers, the whole patience is left.
	Left() (left time.Duration, failing bool)

	// Fences returns how many fencing tokens the Client would like at this moment, 1 to MaxFences. It is for when the
	// tokens are drawn, which may be long after the call of Queue began. Any goroutine may call it until Queue returns. It
	// does not block.
	Fences() int

	// EndWith makes the call also end with ErrClosed when the backend is closed, which closes closing.
	EndWith(closing <-chan struct{})

	// Closing is closed when the Client is closed or drained, and Woken calls the hook Woken. They are for a sleep since
	// start that is not made by Sleep.
	Closing() <-chan struct{}
	Woken(reason lockertrace.WakeReason, start time.Time)
}

// Notifier is an optional interface that may be implemented by a [Backend] that is not a [Queuer] but learns when a
// lock may have become free. If not, waiting calls of Lock poll more often.
type Notifier interface {
	// Notify calls wake whenever key may have become free. It also calls wake once when it starts to receive messages
	// about key, and each time it receives messages again after an interruption, because messages may have been lost
	// before. wake does not block.
	//
	// live reports whether messages are being received now. Notify is active until stop is called; wake may be called
	// once more after that.
	Notify(key string, wake func()) (live func() bool, stop func())
}
