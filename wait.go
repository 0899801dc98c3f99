package locker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/lockertrace"
)

// silence is how long a contact with the store may be unanswered before it counts as failed.
const silence = time.Second

// wait implements [backend.Wait]. The Client uses it itself if the store has no queue, and otherwise passes it to
// Queuer.Queue.
type wait struct {
	trace     *lockertrace.Trace
	announced bool // Trace.Waiting was called
	patience  time.Duration
	closing   <-chan struct{} // closed when the Client acquires no locks any more
	ending    <-chan struct{} // see EndWith
	queue     *keyQueue       // of the Client, whose other callers may wait for the lock

	mu     sync.Mutex    // guards the following, which callers behind the one at the front read
	waits  bool          // the call of Queue in progress has found the lock held
	held   error         // the last answer that the lock is held; nil if there was none
	fault  error         // of the last contact with the store; nil if the store answered
	faulty time.Time     // when the first contact began that has failed since the last answer
	doubt  chan struct{} // closed when fault is set; nil unless a caller behind the one at the front watches for that
}

// begin begins a call of Queue.
func (w *wait) begin(patience time.Duration, closing <-chan struct{}) {
	w.patience, w.closing, w.ending = patience, closing, nil
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits = false
}

// EndWith implements [backend.Wait].
func (w *wait) EndWith(closing <-chan struct{}) { w.ending = closing }

// Closing implements [backend.Wait].
func (w *wait) Closing() <-chan struct{} { return w.closing }

// Held implements [backend.Wait].
func (w *wait) Held(held error) {
	w.mu.Lock()
	w.waits = true
	w.mu.Unlock()
	if held != nil {
		w.found(held)
	}
}

// found is Held for an error that matches ErrHeld.
func (w *wait) found(held error) {
	if !w.announced {
		w.announced = true
		if w.queue.wants != nil {
			w.queue.stand()
		}
		waiting(w.trace, heldOf(held))
	}
	w.saw(held)
}

// saw records that the lock is held.
func (w *wait) saw(held error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits, w.held = true, held
	w.answered()
}

// answered records that the store has answered. Call with mu held.
func (w *wait) answered() {
	if w.fault != nil {
		w.fault, w.doubt = nil, nil
	}
}

// isWaiting reports whether Held was called in this call of Queue.
func (w *wait) isWaiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waits
}

// Answered implements [backend.Wait].
func (w *wait) Answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered()
}

// Failed implements [backend.Wait].
func (w *wait) Failed(ctx context.Context, since time.Time, err error) (pause time.Duration, end error) {
	if end := w.note(ctx.Err() != nil, time.Since(since), since, err); end != nil {
		return 0, end
	}
	_, failing, _ := w.seen()
	if !w.isWaiting() || failing >= w.patience {
		return 0, err
	}
	return w.pause(failing), nil
}

// note records a contact that has failed, and took that long. If the context of the call is over, note returns the
// error with which the call ends.
func (w *wait) note(over bool, took time.Duration, since time.Time, err error) error {
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
func (w *wait) doubts() <-chan struct{} {
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
func (w *wait) bears(patience time.Duration, joined time.Time) (left time.Duration, fault error) {
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

// Left implements [backend.Wait].
func (w *wait) Left() (left time.Duration, failing bool) {
	_, since, fault := w.seen()
	return w.patience - since, fault != nil
}

// Limit implements [backend.Wait].
func (w *wait) Limit(most time.Duration) time.Duration {
	if left, failing := w.Left(); w.isWaiting() && (left > 0 || failing) {
		return min(most, max(time.Millisecond, left))
	}
	return most
}

// Fences implements [backend.Wait].
func (w *wait) Fences() int {
	if w.queue.waited() {
		return backend.MaxFences
	}
	return 1
}

// pause returns the pause after a contact that has failed, if the store has been failing for that long; see
// Wait.Failed.
func (w *wait) pause(failing time.Duration) time.Duration {
	_, _, fault := w.seen()
	if rest := restOf(fault); rest > 0 {
		return max(minPoll, min(rest, w.patience-failing)+rand.N(maxPoll))
	}
	d := min(max(failing, maxPoll), time.Second)
	return d/2 + rand.N(d/2)
}

// Sleep implements [backend.Wait].
func (w *wait) Sleep(ctx context.Context, d time.Duration, news <-chan bool) (handed bool, err error) {
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

// Woken implements [backend.Wait].
func (w *wait) Woken(reason lockertrace.WakeReason, start time.Time) { woken(w.trace, reason, start) }

var errUnseen = fmt.Errorf("%w: it has not said yet whether the lock is held", ErrUnavailable)

// Ended implements [backend.Wait].
func (w *wait) Ended(ctx context.Context) error {
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
	case !w.isWaiting():
		return errUnseen
	}
	return w.last(errUnseen)
}

// last returns the result of the last contact with the store, or unseen if there was none.
func (w *wait) last(unseen error) error {
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
func (w *wait) seen() (held bool, failing time.Duration, fault error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault != nil {
		failing = time.Since(w.faulty)
	}
	return w.held != nil, failing, w.fault
}

// label returns the label of the holder that was seen last.
func (w *wait) label() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return heldOf(w.held).Label
}

// failing returns since when the store has been failing, and the error of the last contact. The zero time says that the
// store has answered.
func (w *wait) failing() (since time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		return time.Time{}, nil
	}
	return w.faulty, w.fault
}

func waiting(t *lockertrace.Trace, held HeldError) {
	if t != nil && t.Waiting != nil {
		t.Waiting(lockertrace.Waiting{Remaining: held.Remaining, Label: held.Label})
	}
}

func woken(t *lockertrace.Trace, reason lockertrace.WakeReason, since time.Time) {
	if t != nil && t.Woken != nil {
		t.Woken(lockertrace.Wake{Reason: reason, Slept: time.Since(since)})
	}
}

// heldOf returns what err says about the holder, or the zero HeldError if it says nothing.
func heldOf(err error) HeldError {
	if err == nil { // errors.As would allocate
		return HeldError{}
	}
	var held *HeldError
	if errors.As(err, &held) {
		return *held
	}
	return HeldError{}
}
