package locker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker/lockertrace"
)

// silence is how long a contact with the store may be unanswered before it counts as failed.
const silence = time.Second

// Wait is what is known while a call waits for a lock: whether another owner has the lock, and since when the store
// fails. It says how the wait goes on: for how long a failing store is tolerated, and with which error the call ends.
// The [Client] uses it itself if the store has no queue, and otherwise passes it to [Queuer.Queue].
//
// Queue calls Held, Answered or Failed after each contact with the store, and sleeps by Sleep. The methods are for the
// goroutine that has called Queue.
type Wait struct {
	trace     *lockertrace.Trace
	announced bool // Trace.Waiting was called
	patience  time.Duration
	closing   <-chan struct{} // of the Client
	ending    <-chan struct{} // see EndWith
	queue     *keyQueue       // of the Client, whose other callers may wait for the lock; nil: none do

	mu     sync.Mutex    // guards the following, which callers behind the one at the front read
	waits  bool          // the call of Queue in progress has found the lock held
	held   error         // the last answer that the lock is held; nil if there was none
	fault  error         // of the last contact with the store; nil if the store answered
	faulty time.Time     // when the first contact began that has failed since the last answer
	doubt  chan struct{} // closed when fault is set; nil unless a caller behind the one at the front watches for that
}

// NewWait returns the Wait of a call of Queue. It is for tests of backends: a [Client] makes its own. The hooks are
// those of ctx. patience is that of the option [Patience]. If closing is closed, the call ends with ErrClosed.
func NewWait(ctx context.Context, patience time.Duration, closing <-chan struct{}) *Wait {
	return &Wait{trace: lockertrace.From(ctx), patience: patience, closing: closing}
}

// begin begins a call of Queue.
func (w *Wait) begin(patience time.Duration, closing <-chan struct{}) {
	w.patience, w.closing, w.ending = patience, closing, nil
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits = false
}

// EndWith makes the call also end with ErrClosed when the backend is closed, which closes closing.
func (w *Wait) EndWith(closing <-chan struct{}) { w.ending = closing }

// Closing is closed when the Client is closed. It is for a sleep that is not made by Sleep.
func (w *Wait) Closing() <-chan struct{} { return w.closing }

// Held records an answer of the store: another owner has the lock, or waiters come before this call. From now on, the
// call waits. held says what is known about the owner; nil says that not even this is known, as while a store cannot
// tell. If it is nil, a fault that was recorded stays.
func (w *Wait) Held(held *HeldError) {
	w.mu.Lock()
	w.waits = true
	w.mu.Unlock()
	if held != nil {
		w.found(held)
	}
}

// found is Held for an error that matches ErrHeld.
func (w *Wait) found(held error) {
	if !w.announced {
		w.announced = true
		waiting(w.trace, heldOf(held))
	}
	w.saw(held)
}

// saw records that the lock is held.
func (w *Wait) saw(held error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits, w.held = true, held
	w.answered()
}

// answered records that the store has answered. Call with mu held.
func (w *Wait) answered() {
	if w.fault != nil {
		w.fault, w.doubt = nil, nil
	}
}

// Waits reports whether Held was called in this call of Queue.
func (w *Wait) Waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waits
}

// Answered records that the store has answered, whatever it was.
func (w *Wait) Answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered()
}

// Failed records that a contact with the store that began at since has failed with err. It returns nil if the call
// goes on, after Pause, and otherwise the error to return. A call goes on if it waits, for its patience after the first
// contact that has failed since the last answer. If ctx ended before the contact could be answered, the contact says
// nothing, and the error is what was seen before it.
func (w *Wait) Failed(ctx context.Context, since time.Time, err error) error {
	if end := w.note(ctx.Err() != nil, time.Since(since), since, err); end != nil {
		return end
	}
	if !w.Waits() || w.Left() <= 0 {
		return err
	}
	return nil
}

// note records a contact that has failed, and took that long. If the context of the call is over, note returns the
// error with which the call ends.
func (w *Wait) note(over bool, took time.Duration, since time.Time, err error) error {
	if over && took < silence {
		return w.last(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		w.faulty = since
		if w.doubt != nil {
			close(w.doubt)
		}
	}
	w.fault = err
	if over {
		return err
	}
	return nil
}

// doubts returns a channel that is closed when the store fails.
func (w *Wait) doubts() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.doubt == nil {
		w.doubt = make(chan struct{})
		if w.fault != nil {
			close(w.doubt)
		}
	}
	return w.doubt
}

// bears returns how much is left of the patience of a caller that has waited behind the one at the front since joined.
// It returns the whole patience and no error while the store answers.
func (w *Wait) bears(patience time.Duration, joined time.Time) (left time.Duration, fault error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		return patience, nil
	}
	since := w.faulty
	if since.Before(joined) {
		since = joined
	}
	return patience - time.Since(since), w.fault
}

// Left returns how much is left of the patience with a store that fails: the whole patience while the store answers.
func (w *Wait) Left() time.Duration {
	_, failing, _ := w.seen()
	return w.patience - failing
}

// Pause returns how long to wait before the next contact after one that has failed. The first pauses are short, because
// servers restart, and later ones are longer. If the store rests, the pause lasts until it grants locks again, and a
// random time longer, so that waiters do not all ask at once.
func (w *Wait) Pause() time.Duration {
	_, failing, _ := w.seen()
	return w.pause(failing)
}

// pause is Pause for a store that has been failing for that long.
func (w *Wait) pause(failing time.Duration) time.Duration {
	_, _, fault := w.seen()
	if rest := restOf(fault); rest > 0 {
		return max(minPoll, min(rest, w.patience-failing)+rand.N(maxPoll))
	}
	d := min(max(failing, maxPoll), time.Second)
	return d/2 + rand.N(d/2)
}

// Sleep returns after d, or when news receives: true says that the store has handed the lock to this call, and false
// that the lock may have become free. It calls the hook Woken then. If the call has to end instead, Sleep returns the
// error of Ended. news may be nil.
func (w *Wait) Sleep(ctx context.Context, d time.Duration, news <-chan bool) (handed bool, err error) {
	start, reason := time.Now(), lockertrace.WakePoll
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case handed = <-news:
		if reason = lockertrace.WakeNotify; handed {
			reason = lockertrace.WakeHandover
		}
	case <-t.C:
	case <-w.closing:
		return false, ErrClosed
	case <-w.ending:
		return false, ErrClosed
	case <-ctx.Done():
		return false, w.last(errUnseen)
	}
	w.Woken(reason, start)
	return handed, nil
}

// Woken calls the hook Woken, after a sleep since start that was not made by Sleep.
func (w *Wait) Woken(reason lockertrace.WakeReason, start time.Time) { woken(w.trace, reason, start) }

var errUnseen = fmt.Errorf("%w: it has not said yet whether the lock is held", ErrUnavailable)

// Ended returns nil while the call may go on. Otherwise it returns the error with which the call ends: ErrClosed, or
// what the last contact with the store has shown if ctx has ended. What was shown before this call of Queue does not
// count, because the store may have been silent for all of it.
func (w *Wait) Ended(ctx context.Context) error {
	select {
	case <-w.closing:
		return ErrClosed
	case <-w.ending:
		return ErrClosed
	default:
	}
	switch {
	case ctx.Err() == nil:
		return nil
	case !w.Waits():
		return errUnseen
	}
	return w.last(errUnseen)
}

// last returns the result of the last contact with the store, or unseen if there was none.
func (w *Wait) last(unseen error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.fault != nil:
		return w.fault
	case w.held != nil:
		return w.held
	case w.waits:
		return &HeldError{}
	}
	return unseen
}

// seen returns whether the lock was ever seen held, how long contacts have been failing, and with which error.
func (w *Wait) seen() (held bool, failing time.Duration, fault error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault != nil {
		failing = time.Since(w.faulty)
	}
	return w.held != nil, failing, w.fault
}

// label returns the label of the holder that was seen last.
func (w *Wait) label() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return heldOf(w.held).Label
}

// Failing returns since when the store has been failing, and the error of the last contact. The zero time says that the
// store has answered.
func (w *Wait) Failing() (since time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		return time.Time{}, nil
	}
	return w.faulty, w.fault
}
