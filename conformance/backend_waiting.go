package conformance

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// queuers makes n Backends for a fresh store, and skips the property unless they implement Queuer.
func queuers(t testing.TB, h Harness, n int) ([]locker.Backend, Store) {
	t.Helper()
	bs, s := backends(t, h, n)
	if _, ok := bs[0].(locker.Queuer); !ok {
		t.Skip("the Backend does not implement locker.Queuer: its Client polls or is notified")
	}
	return bs, s
}

// queued is a running call of Queue.
type queued struct {
	waiting chan struct{} // closed when it begins to wait
	calls   atomic.Int32  // of Waiting
	left    atomic.Int64  // the remaining time that Waiting reported
	done    chan struct{} // closed when it has returned

	o   *holding
	err error
	at  time.Time
}

// queue calls Queue as a Client does.
func queue(ctx context.Context, b locker.Backend, key string, ttl time.Duration) *queued {
	q := &queued{waiting: make(chan struct{}), done: make(chan struct{})}
	req := request(key, ttl)
	req.Waiting = func(held *locker.HeldError) {
		q.left.Store(int64(held.Remaining))
		if q.calls.Add(1) == 1 {
			close(q.waiting)
		}
	}
	go func() {
		defer close(q.done)
		sent := time.Now()
		g, err := b.(locker.Queuer).Queue(ctx, req)
		q.at = time.Now()
		if q.err = err; err == nil {
			q.o = held(b, req, sent, g)
		}
	}()
	return q
}

// waits blocks until the call has reported that it waits.
func (q *queued) waits(t testing.TB) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-q.waiting:
	case <-q.done:
		t.Fatalf("Queue of a held lock: expected it to wait, seen it return: %v", q.err)
	case <-timer.C:
		t.Fatalf("Queue of a held lock: expected a call of Waiting within %v, seen none", patience)
	}
}

// granted waits for the grant and returns it.
func (q *queued) granted(t testing.TB, what string, limit time.Duration) *holding {
	t.Helper()
	await(t, what, q.done, limit)
	if q.err != nil {
		t.Fatalf("%s: expected a grant, seen %v", what, q.err)
	}
	return q.o
}

func queueTellsThatItWaits(t testing.TB, h Harness) {
	bs, _ := queuers(t, h, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	for _, b := range bs { // behind an owner of the same Backend, and of another Backend
		q := queue(ctx, bs[0], "k", longTTL)
		owner := q.granted(t, "Queue of a free lock to be granted", slack)
		if n := q.calls.Load(); n > 0 {
			t.Errorf("Queue of a free lock: expected no call of Waiting, seen %d", n)
		}
		q = queue(ctx, b, "k", longTTL)
		q.waits(t)
		time.Sleep(stall)
		owner.must(t)
		o := q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
		if n := q.calls.Load(); n != 1 {
			t.Errorf("Queue of a held lock: expected one call of Waiting, seen %d", n)
		}
		h.wantRemaining(t, "Waiting", time.Duration(q.left.Load()), longTTL)
		o.must(t)
	}
}

// notifiers makes n Backends for a fresh store, and skips the property unless they implement Notifier and not Queuer.
func notifiers(t testing.TB, h Harness, n int) ([]locker.Backend, Store) {
	t.Helper()
	bs, s := backends(t, h, n)
	if _, ok := bs[0].(locker.Queuer); ok {
		t.Skip("the Backend implements locker.Queuer: its Client does not call Notify")
	}
	if _, ok := bs[0].(locker.Notifier); !ok {
		t.Skip("the Backend does not implement locker.Notifier: its Client polls")
	}
	return bs, s
}

// woken waits until wake has been called more than n times.
func woken(t testing.TB, what string, calls *atomic.Int32, n int32) {
	t.Helper()
	for end := time.Now().Add(recovery); calls.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("expected wake to be called %s within %v, seen %d calls", what, recovery, calls.Load())
		}
	}
}

func notifyTells(t testing.TB, h Harness) {
	bs, _ := notifiers(t, h, 2)
	for i := range 4 {
		owner := grab(t, bs[i%2], "k", longTTL)
		var calls atomic.Int32
		live, stop := bs[1].(locker.Notifier).Notify("k", func() { calls.Add(1) })
		woken(t, "when it is sure to be told", &calls, 1)
		if !live() {
			t.Error("live: expected true while its subscription is active, seen false")
		}
		before := calls.Load()
		owner.must(t)
		woken(t, "after the owner's Release", &calls, before+1)
		stop()
	}
}

func notifyStops(t testing.TB, h Harness) {
	bs, _ := notifiers(t, h, 1)
	var calls, others atomic.Int32
	_, stop := bs[0].(locker.Notifier).Notify("k", func() { calls.Add(1) })
	woken(t, "when it is sure to be told", &calls, 1)
	stop()
	before := calls.Load()
	_, stop = bs[0].(locker.Notifier).Notify("k", func() { others.Add(1) }) // another subscription stays active
	woken(t, "when it is sure to be told", &others, 1)
	for range 5 {
		seen := others.Load()
		grab(t, bs[0], "k", longTTL).must(t)
		woken(t, "after a Release", &others, seen+1)
	}
	stop()
	if n := calls.Load() - before; n > 1 {
		t.Errorf("expected at most one call of wake after stop, seen %d", n)
	}
}
