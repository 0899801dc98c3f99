package locker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// entered is the result of one call of enter.
type entered struct {
	queue *keyQueue
	err   error
}

// arrive calls enter and returns when that has returned, or waits.
func arrive(ctx context.Context, qs *keyQueues, closing <-chan struct{}) <-chan entered {
	result := make(chan entered, 1)
	go func() {
		q, _, err := qs.join(ctx, closing, "k", defaultOptions, time.Now())
		result <- entered{q, err}
	}()
	synctest.Wait()
	return result
}

func atFront(t *testing.T, who string, result <-chan entered) *keyQueue {
	t.Helper()
	synctest.Wait()
	select {
	case e := <-result:
		if e.err != nil {
			t.Fatalf("%s: %v", who, e.err)
		}
		return e.queue
	default:
		t.Fatalf("%s is not at the front", who)
		return nil
	}
}

func waitsStill(t *testing.T, who string, result <-chan entered) {
	t.Helper()
	synctest.Wait()
	if len(result) > 0 {
		t.Fatalf("%s is at the front: %v", who, <-result)
	}
}

func TestKeyQueueServesOneCallerAtATimeInOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var qs keyQueues
		var results []<-chan entered
		for range 10 {
			results = append(results, arrive(t.Context(), &qs, nil))
		}
		for i, r := range results {
			q := atFront(t, "the first", r)
			for _, later := range results[i+1:] {
				waitsStill(t, "another", later)
			}
			q.leave(nil)
		}
		if len(qs.byKey) > 0 {
			t.Error("the queue is kept although nobody is in it")
		}
	})
}

func TestKeyQueueExcludes(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var qs keyQueues
		var inside atomic.Int32
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				for n := range 20 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*n)*time.Millisecond)
					q, _, err := qs.join(ctx, nil, "k", defaultOptions, time.Now())
					if err == nil {
						if inside.Add(1) > 1 {
							t.Error("two callers are at the front")
						}
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						q.leave(nil)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		if len(qs.byKey) > 0 {
			t.Error("the queue is kept although nobody is in it")
		}
	})
}

// A caller may come to the front just when its context ends. The next caller is then served.
func TestTurnIsNotLostWhenTheCallerLeaves(t *testing.T) {
	for _, what := range []string{"context", "closing"} {
		for _, turnFirst := range []bool{true, false} {
			virtual.Test(t, func(t *testing.T) {
				var qs keyQueues
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				closing := make(chan struct{})
				first := atFront(t, "the first", arrive(t.Context(), &qs, nil))
				leaving := arrive(ctx, &qs, closing)
				next := arrive(t.Context(), &qs, nil)
				end := cancel
				if what == "closing" {
					end = func() { close(closing) }
				}
				// The first event wakes the caller. The caller must also notice the second one, which has happened by
				// the time it has the mutex.
				qs.mu.Lock()
				if turnFirst {
					first.next()
					end()
				} else {
					end()
					first.next()
				}
				qs.mu.Unlock()
				e := <-leaving
				if (e.err == nil) != turnFirst {
					t.Errorf("%s, turn first %v: the caller got the error %v", what, turnFirst, e.err)
				}
				if e.err == nil {
					waitsStill(t, "the next one", next)
					e.queue.leave(nil)
				}
				atFront(t, "the next one", next).leave(nil)
				if len(qs.byKey) > 0 {
					t.Error("the queue is kept although nobody is in it")
				}
			})
		}
	}
}

// A caller that leaves from the middle of the queue does not stop the ones behind it.
func TestKeyQueueSkipsCallersThatHaveLeft(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var qs keyQueues
		first := atFront(t, "the first", arrive(t.Context(), &qs, nil))
		ctx, cancel := context.WithCancel(t.Context())
		leaving, next := arrive(ctx, &qs, nil), arrive(t.Context(), &qs, nil)
		cancel()
		if e := <-leaving; !errors.Is(e.err, errBehind) || errors.Is(e.err, ErrHeld) {
			t.Errorf("nothing was known of the lock, and the error is %v", e.err)
		}
		first.leave(nil)
		atFront(t, "the next one", next).leave(nil)
	})
}

// When the context of a waiting caller ends, its error says what the caller at the front has seen.
func TestKeyQueueReportsWhatTheFrontHasSeen(t *testing.T) {
	for what, f := range map[string]func(l *keyQueue){
		"held":                    func(q *keyQueue) { q.Held(&HeldError{Label: "web-7"}) },
		"acquired by this client": func(q *keyQueue) { q.leave(&lease{grant: &grant{req: backend.Request{Label: "web-7"}}}) },
	} {
		t.Run(what, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var qs keyQueues
				first := atFront(t, "the first", arrive(t.Context(), &qs, nil))
				second := arrive(t.Context(), &qs, nil)
				ctx, cancel := context.WithCancel(t.Context())
				third := arrive(ctx, &qs, nil)
				f(first)
				cancel()
				if e := <-third; !errors.Is(e.err, ErrHeld) || heldOf(e.err).Label != "web-7" {
					t.Errorf("the error is %v", e.err)
				}
				if what == "held" {
					first.leave(nil)
				}
				atFront(t, "the second", second).leave(nil)
			})
		})
	}
}

func TestKeyQueuesOfOtherKeysAreIndependent(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var qs keyQueues
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { t.Error("waits") }})
		for _, key := range []string{"a", "b"} {
			if _, _, err := qs.join(ctx, nil, key, defaultOptions, time.Now()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call may wait behind other callers of its Client, and then for another owner. Trace.Waiting is called once.
func TestTraceOfACallThatWaitsTwice(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := queueingStore{release: make(chan struct{})}
		c := NewClient(store)
		first := make(chan struct{})
		go func() {
			defer close(first)
			if _, err := c.Lock(t.Context(), "k", NoRenewal()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait() // the first is at the store
		var seen []string
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
			Waiting: func(w lockertrace.Waiting) { seen = append(seen, "waiting for "+w.Label) },
			Woken:   func(w lockertrace.Wake) { seen = append(seen, string(w.Reason)) },
		})
		second := make(chan struct{})
		go func() {
			defer close(second)
			if _, err := c.Lock(ctx, "k", NoRenewal()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait() // it waits behind the first
		store.release <- struct{}{}
		<-first
		store.release <- struct{}{}
		<-second
		if got := strings.Join(seen, ", "); got != "waiting for another, front" {
			t.Errorf("seen: %s", got)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// queueingStore grants a lock for each value that is sent to release.
type queueingStore struct{ release chan struct{} }

func (s queueingStore) Queue(_ context.Context, _ backend.Request, wait backend.Wait) (backend.Grant, error) {
	wait.Held(&HeldError{Remaining: time.Second, Label: "another"})
	<-s.release
	return backend.Grant{}, nil
}

func (queueingStore) Acquire(context.Context, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, ErrHeld
}
func (queueingStore) Extend(context.Context, backend.Request) error  { return nil }
func (queueingStore) Release(context.Context, backend.Request) error { return nil }

// A hook that panics does not keep the callers behind it from the lock.
func TestKeyQueueGoesOnAfterAHookHasPanicked(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var qs keyQueues
		for _, hook := range []lockertrace.Trace{
			{Waiting: func(lockertrace.Waiting) { panic("oops") }},
			{Woken: func(lockertrace.Wake) { panic("oops") }},
		} {
			first := atFront(t, "the first", arrive(t.Context(), &qs, nil))
			panicked := make(chan any, 1)
			go func() {
				defer func() { panicked <- recover() }()
				_, _, _ = qs.join(lockertrace.With(t.Context(), &hook), nil, "k", defaultOptions, time.Now())
			}()
			synctest.Wait()
			next := arrive(t.Context(), &qs, nil)
			first.leave(nil)
			if p := <-panicked; p != "oops" {
				t.Errorf("the caller did not get the panic, but %v", p)
			}
			atFront(t, "the next one", next).leave(nil)
		}
		if len(qs.byKey) > 0 {
			t.Error("the queue is kept although nobody is in it")
		}
	})
}
