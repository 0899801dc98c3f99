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
	// Wait is that of the caller at the front. The callers behind it report what it has learnt from the store when their
	// context ends, and the next caller at the front starts from that.
	Wait
}

var errBehind = errors.New("other callers of this client are waiting for the lock ahead of this one")

// join waits until the caller is at the front of the queue of key. The caller must then call leave. join fails when
// ctx ends or closing is closed. If it has to wait, it calls the Trace of ctx, with the label of the holder that was
// seen last.
func (qs *keyQueues) join(ctx context.Context, closing <-chan struct{}, key string) (*keyQueue, error) {
	trace := lockertrace.From(ctx)
	qs.mu.Lock()
	q := qs.byKey[key]
	if q == nil {
		if qs.byKey == nil {
			qs.byKey = make(map[string]*keyQueue)
		}
		q = &keyQueue{queues: qs, key: key}
		q.trace = trace
		qs.byKey[key] = q
		qs.mu.Unlock()
		return q, nil
	}
	front := make(chan struct{})
	position := q.waiting.PushBack(front)
	qs.mu.Unlock()
	waits := true
	defer func() { // also if a hook panics
		if waits {
			q.quit(front, position)
		}
	}()
	since := time.Now()
	waiting(trace, HeldError{Label: q.label()})
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
	return nil, q.last(errBehind)
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
		q.saw(&HeldError{Label: label}) // by this client
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
