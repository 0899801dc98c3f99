package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/lockertrace"
)

// queuers makes n Backends for a fresh store, and skips the property unless they implement Queuer.
func queuers(t testing.TB, h Harness, n int) ([]backend.Backend, Store) {
	t.Helper()
	bs, s := backends(t, h, n)
	if _, ok := bs[0].(backend.Queuer); !ok {
		t.Skip("the Backend does not implement backend.Queuer: its Client polls or is notified")
	}
	return bs, s
}

// queued is a running call of Queue.
type queued struct {
	waiting chan struct{} // closed when it begins to wait
	calls   atomic.Int32  // of the hook Waiting
	left    atomic.Int64  // the remaining time that the hook reported
	wait    backend.Wait
	closes  func()        // closes the Client
	done    chan struct{} // closed when it has returned

	o     *holding
	grant backend.Grant
	err   error
	at    time.Time
}

// queue calls Queue as a Client does.
func queue(ctx context.Context, b backend.Backend, key string, ttl time.Duration) *queued {
	return queueFor(ctx, b, request(key, ttl), 0)
}

// queueFor is queue with a request, whose Fences the Wait asks for, and a patience.
func queueFor(ctx context.Context, b backend.Backend, req backend.Request, patience time.Duration) *queued {
	q := &queued{waiting: make(chan struct{}), done: make(chan struct{})}
	ctx = lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(w lockertrace.Waiting) {
		q.left.Store(int64(w.Remaining))
		if q.calls.Add(1) == 1 {
			close(q.waiting)
		}
	}})
	wait, closes := clientwait.New(ctx, locker.Patience(patience))
	q.wait, q.closes = manyTokens{wait, req.Fences}, closes
	go func() {
		defer close(q.done)
		sent := time.Now()
		g, err := b.(backend.Queuer).Queue(ctx, req, q.wait)
		q.at = time.Now()
		if q.err = err; err == nil {
			q.o, q.grant = held(b, req, sent, g), g
		}
	}()
	return q
}

// manyTokens is a Wait that asks for a number of fencing tokens.
type manyTokens struct {
	backend.Wait
	fences int
}

func (a manyTokens) Fences() int { return max(1, a.fences) }

// failing returns for how long the store has been failing, and false if the last contact has succeeded.
func (q *queued) failing(patience time.Duration) (time.Duration, bool) {
	left, fails := q.wait.Left()
	return patience - left, fails
}

// waits blocks until the call has reported that it waits.
func (q *queued) waits(t testing.TB) {
	t.Helper()
	timer := time.NewTimer(hangLimit)
	defer timer.Stop()
	select {
	case <-q.waiting:
	case <-q.done:
		t.Fatalf("Queue of a held lock: expected it to wait, seen it return: %v", q.err)
	case <-timer.C:
		t.Fatalf("Queue of a held lock: expected a call of Waiting within %v, seen none", hangLimit)
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
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
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

// queueSaysWhatItSawLast covers what Queue answers when it ends without a grant.
func queueSaysWhatItSawLast(t testing.TB, h Harness) {
	bs, s := queuers(t, h, 2)
	owner := grab(t, bs[0], "k", locker.MaxTTL)
	defer func() { _ = owner.release(context.WithoutCancel(t.Context())) }() // which goes on after a fault
	var q *queued
	ends := func(what string, patience time.Duration, fault func() func(), ends func(cancel, close func()) error,
		never error,
	) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for end := time.Now().Add(recovery); ; { // a fault may have been just before
			q = queueFor(ctx, bs[1], request("k", longTTL), patience)
			select {
			case <-q.waiting:
			case <-q.done:
				if errors.Is(q.err, locker.ErrUnavailable) && time.Now().Before(end) {
					time.Sleep(stall)
					continue
				}
			}
			break
		}
		q.waits(t)
		if fault != nil {
			defer fault()()
		}
		began := time.Now()
		want := ends(cancel, q.closes)
		await(t, "Queue to return: "+what, q.done, hangLimit+5*recovery)
		if !errors.Is(q.err, want) || never != nil && errors.Is(q.err, never) {
			t.Errorf("Queue, %s: expected an error that matches %q, and none that matches %v, seen %v", what, want, never, q.err)
		}
		if since, _ := q.failing(patience); fault != nil && since > time.Since(began)+5*time.Second {
			t.Errorf("Queue, %s: expected the store to fail since the fault, seen for %v", what, since)
		}
	}
	after := func(d time.Duration, want error) func(cancel, _ func()) error {
		return func(cancel, _ func()) error {
			time.Sleep(d)
			cancel()
			return want
		}
	}
	ends("the context ends", time.Hour, nil, after(stall, locker.ErrHeld), locker.ErrUnavailable)
	ends("the Client is closed", time.Hour, nil, func(_, closes func()) error {
		closes()
		return locker.ErrClosed
	}, nil)
	if s.Down == nil {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q = queueFor(ctx, bs[1], request("k", longTTL), time.Hour)
	q.waits(t)
	up := s.Down()
	time.Sleep(4 * time.Second)
	_, fails := q.failing(time.Hour)
	up()
	cancel()
	await(t, "Queue to return when its context ends", q.done, recovery)
	if !fails {
		return // a call that makes no contact while it waits does not know
	}
	ends("the store is down, and the context ends", time.Hour, s.Down,
		after(4*time.Second, locker.ErrUnavailable), locker.ErrHeld)
	unavailable := func(_, _ func()) error { return locker.ErrUnavailable }
	ends("the store is down, and there is no patience", 0, s.Down, unavailable, locker.ErrHeld)
	ends("the store is down for longer than the patience", time.Second, s.Down, unavailable, locker.ErrHeld)
}

// notifiers makes n Backends for a fresh store, and skips the property unless they implement Notifier and not Queuer.
func notifiers(t testing.TB, h Harness, n int) ([]backend.Backend, Store) {
	t.Helper()
	bs, s := backends(t, h, n)
	if _, ok := bs[0].(backend.Queuer); ok {
		t.Skip("the Backend implements backend.Queuer: its Client does not call Notify")
	}
	if _, ok := bs[0].(backend.Notifier); !ok {
		t.Skip("the Backend does not implement backend.Notifier: its Client polls")
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
		live, stop := bs[1].(backend.Notifier).Notify("k", func() { calls.Add(1) })
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
	_, stop := bs[0].(backend.Notifier).Notify("k", func() { calls.Add(1) })
	woken(t, "when it is sure to be told", &calls, 1)
	stop()
	before := calls.Load()
	_, stop = bs[0].(backend.Notifier).Notify("k", func() { others.Add(1) }) // another subscription stays active
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

// watchedLock is a lock that a Backend watches.
type watchedLock struct {
	calls atomic.Int32 // of changed
	stop  func()
}

// watching makes two Backends, the first of which watches the lock k, or skips the property.
func watching(t testing.TB, h Harness) (w *watchedLock, bs []backend.Backend, s Store) {
	t.Helper()
	bs, s = backends(t, h, 2)
	b, ok := bs[0].(inspect.Watcher)
	if !ok {
		t.Skip("the Backend does not implement inspect.Watcher: observers look now and then")
	}
	w = new(watchedLock)
	stop, err := b.Watch("k", func() { w.calls.Add(1) })
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		t.Skip("the Backend does not tell of changes: observers look now and then")
	case err != nil:
		t.Fatalf("Watch: expected no error, seen %v", err)
	}
	w.stop = stop
	if i, ok := bs[0].(inspect.Inspector); ok { // what changes after this is told of
		seenOf(t, i, "k", inspect.Free)
	}
	return w, bs, s
}

// tells makes a change and waits for a call of changed.
func (w *watchedLock) tells(t testing.TB, what string, change func()) {
	t.Helper()
	before := w.calls.Load()
	change()
	if !until(recovery, func() bool { return w.calls.Load() > before }) {
		t.Errorf("%s: expected a call of changed within %v, seen none", what, recovery)
	}
}

func watchTells(t testing.TB, h Harness) {
	w, bs, _ := watching(t, h)
	var o *holding
	for i := range 4 {
		w.tells(t, "Acquire", func() { o = grab(t, bs[i%2], "k", longTTL) })
		w.tells(t, "Release", func() { o.must(t) })
	}
	w.tells(t, "Acquire", func() { o = grab(t, bs[1], "k", longTTL) })
	w.tells(t, "Release with Keep", func() {
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		defer cancel()
		if err := o.releaseKeeping(ctx, h.short()); err != nil {
			t.Errorf("Release with Keep: expected no error, seen %v", err)
		}
	})
	w.tells(t, "Acquire of a lock that was kept", func() { o, _ = grabWhenFree(t, bs[1], "k", longTTL, hangLimit) })
	if i, ok := bs[1].(inspect.Inspector); ok {
		w.tells(t, "ForceRelease", func() {
			if _, err := i.ForceRelease(t.Context(), "k", ""); err != nil {
				t.Errorf("ForceRelease: expected no error, seen %v", err)
			}
		})
	} else {
		o.must(t)
	}
	w.stop()
	before := w.calls.Load()
	for range 5 {
		o := grab(t, bs[0], "k", longTTL)
		time.Sleep(stall)
		o.must(t)
		time.Sleep(stall)
	}
	if n := w.calls.Load() - before; n > 1 {
		t.Errorf("expected at most one call of changed after stop, seen %d", n)
	}
}

func watchOutlivesOutages(t testing.TB, h Harness) {
	w, bs, s := watching(t, h)
	defer w.stop()
	if s.Down == nil {
		t.Skip("the harness has no Down")
	}
	for range 2 {
		mend := failing(t, s.Down)
		time.Sleep(stall)
		mend()
		var o *holding
		w.tells(t, "Acquire after an outage", func() { o, _ = grabWhenFree(t, bs[1], "k", longTTL, recovery) })
		w.tells(t, "Release after an outage", func() { o.must(t) })
	}
}

// reports is what NotifyLoss has reported of a lock.
type reports chan error

// notified calls NotifyLoss as a Client does.
func (o *holding) notified(n backend.LossNotifier) (r reports, stop func()) {
	r = make(reports, 10)
	return r, n.NotifyLoss(o.req, func(err error) {
		select {
		case r <- err:
		default: // there are enough
		}
	})
}

func notifyLossTells(t testing.TB, h Harness) {
	bs, s := backends(t, h, 1)
	n, ok := bs[0].(backend.LossNotifier)
	switch {
	case !ok:
		t.Skip("the Backend does not implement backend.LossNotifier: its Client learns of losses by renewals")
	case s.Delete == nil:
		t.Skip("the harness has no Delete")
	}
	kept, lost, released := grab(t, bs[0], "kept", longTTL), grab(t, bs[0], "lost", longTTL), grab(t, bs[0], "r", longTTL)
	ofKept, stopKept := kept.notified(n)
	ofLost, stopLost := lost.notified(n)
	ofReleased, stopReleased := released.notified(n)
	if err := kept.extend(t.Context(), 2*longTTL); err != nil {
		t.Fatalf("Extend of a held lock: expected no error, seen %v", err)
	}
	stopReleased()
	released.must(t)
	s.Delete("lost")
	timer := time.NewTimer(recovery)
	defer timer.Stop()
	select {
	case err := <-ofLost:
		wantKind(t, "the report about a lock that was deleted", err, locker.ErrNotHeld)
	case <-timer.C:
		t.Errorf("a lock was deleted: expected a report within %v, seen none", recovery)
	}
	stopLost()
	timer.Reset(stall)
	select {
	case err := <-ofKept:
		t.Errorf("a lock that is held: expected no report, seen %v", err)
	case <-timer.C:
	}
	stopKept()
	kept.must(t)
	if len(ofReleased) > 1 {
		t.Errorf("NotifyLoss after stop: expected one report at most, seen %d", len(ofReleased))
	}
}
