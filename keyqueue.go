package locker

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golocker/locker/lockertrace"
)

// keyQueues has a queue per key for the callers of one Client. Only the caller at the front of a queue asks the store,
// so a thousand waiting goroutines cost the store no more than one.
//
// The caller at the front leaves when it has acquired the lock, not when it has released it. The next caller is then
// already waiting at the store when the lock is released.
type keyQueues struct {
	mu    sync.Mutex
	byKey map[string]*keyQueue // the queues that have a caller at the front
}

// keyQueue is the queue of the callers that want one key.
type keyQueue struct {
	queues  *keyQueues
	key     string
	waiting list.List // of chan struct{}: each is closed when its caller comes to the front

	// What the caller at the front has learnt from the store. The callers behind it report this when their context
	// ends, and the next caller at the front starts from it.
	held   error     // the last answer that the lock is held; nil if there was none
	fault  error     // of the last contact with the store; nil if the store answered
	faulty time.Time // when the first contact began that has failed since the last answer

	// These belong to the caller at the front.
	trace     *lockertrace.Trace
	announced bool // Trace.Waiting was called
	refused   bool // the attempt in progress has found the lock held
}

var errBehind = errors.New("other callers of this client are waiting for the lock ahead of this one")

// enter waits until the caller is at the front of the queue of key. The caller must then call leave. enter fails when
// ctx ends or closing is closed. If it has to wait, it calls the Trace of ctx, with the label of the holder that was
// seen last.
func (qs *keyQueues) enter(ctx context.Context, closing <-chan struct{}, key string) (*keyQueue, error) {
	trace := lockertrace.From(ctx)
	qs.mu.Lock()
	q := qs.byKey[key]
	if q == nil {
		if qs.byKey == nil {
			qs.byKey = make(map[string]*keyQueue)
		}
		q = &keyQueue{queues: qs, key: key, trace: trace}
		qs.byKey[key] = q
		qs.mu.Unlock()
		return q, nil
	}
	front := make(chan struct{})
	position := q.waiting.PushBack(front)
	label := heldOf(q.held).Label
	qs.mu.Unlock()
	waits := true
	defer func() { // also if a hook panics
		if waits {
			q.quit(front, position)
		}
	}()
	since := time.Now()
	waiting(trace, HeldError{Label: label})
	select {
	case <-front:
		q.trace, q.announced = trace, true
		woken(trace, lockertrace.WakeFront, since)
		waits = false
		return q, nil
	case <-closing:
		return nil, ErrClosed
	case <-ctx.Done():
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if last := q.last(); last != nil {
		return nil, last
	}
	return nil, errBehind
}

// quit removes a caller that waits.
func (q *keyQueue) quit(front chan struct{}, position *list.Element) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	select {
	case <-front: // the caller came to the front at the same moment, and passes this on
		q.next()
	default:
		q.waiting.Remove(position)
	}
}

// leave removes the caller at the front. label is that of the lock, if it was acquired.
func (q *keyQueue) leave(acquired bool, label string) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if acquired && q.waiting.Len() > 0 {
		q.held, q.fault = &HeldError{Label: label}, nil // by this client
	}
	q.next()
}

// next brings the next caller to the front. It removes the queue if there is none. Call with the mutex held.
func (q *keyQueue) next() {
	first := q.waiting.Front()
	if first == nil {
		delete(q.queues.byKey, q.key)
		return
	}
	close(q.waiting.Remove(first).(chan struct{}))
}

// saw is called by the caller at the front when it learns that the lock is held. It records that for the callers
// behind, and calls Trace.Waiting if that was not called yet.
func (q *keyQueue) saw(held error) {
	q.refused = true
	if !q.announced {
		q.announced = true
		waiting(q.trace, heldOf(held))
	}
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	q.held, q.fault = held, nil
}

// failing is called by the caller at the front when a contact with the store that began at since has failed with err,
// or, with a nil err, when the store has answered.
func (q *keyQueue) failing(since time.Time, err error) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.fault == nil {
		q.faulty = since
	}
	q.fault = err
}

// last returns the result of the last contact with the store, or nil if there was none. Call with the mutex held.
func (q *keyQueue) last() error {
	if q.fault != nil {
		return q.fault
	}
	return q.held
}

// seen returns, for the caller at the front, whether the lock was ever seen held, how long contacts have been failing,
// and the result of the last contact.
func (q *keyQueue) seen() (held bool, since time.Duration, last error) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.fault != nil {
		since = time.Since(q.faulty)
	}
	return q.held != nil, since, q.last()
}

// failingSince returns when the first contact began that has failed since the last answer. It is zero if the store has
// answered.
func (q *keyQueue) failingSince() time.Time {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.fault == nil {
		return time.Time{}
	}
	return q.faulty
}
