package conformance

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// queuers makes n Backends of a fresh store that are Queuers.
func queuers(t testing.TB, h BackendHarness, n int) ([]locker.Backend, BackendStore) {
	t.Helper()
	bs, s := backends(t, h, n)
	if _, ok := bs[0].(locker.Queuer); !ok {
		t.Skip("the Backend is no locker.Queuer: its Client asks again and again")
	}
	return bs, s
}

// queued is a call of Queue under way.
type queued struct {
	waiting chan struct{} // closed when it begins to wait
	calls   atomic.Int32  // of Waiting
	left    atomic.Int64  // what it was told remains
	done    chan struct{} // closed when it has returned

	o   *holding
	err error
	at  time.Time
}

// queue calls Queue as a Client does.
func queue(ctx context.Context, b locker.Backend, key string, ttl time.Duration, closing <-chan struct{}) *queued {
	q := &queued{waiting: make(chan struct{}), done: make(chan struct{})}
	req := request(key, ttl)
	req.Closing = closing
	req.Waiting = func(left time.Duration) {
		q.left.Store(int64(left))
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

// waits waits until the call waits.
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

func queueGrantsAtOnce(t testing.TB, h BackendHarness) {
	bs, _ := queuers(t, h, 2)
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		q := queue(ctx, bs[i%2], "k", longTTL, nil)
		o := q.granted(t, "Queue of a free lock to be granted", slack)
		cancel()
		if n := q.calls.Load(); n > 0 {
			t.Errorf("Queue of a free lock: expected no call of Waiting, seen %d", n)
		}
		o.must(t)
	}
}

func queueWaits(t testing.TB, h BackendHarness) {
	bs, _ := queuers(t, h, 2)
	for i := range bs { // behind an owner of the same Backend, and of another
		owner := grab(t, bs[0], "k", longTTL)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		q := queue(ctx, bs[i], "k", longTTL, nil)
		q.waits(t)
		time.Sleep(stall)
		released := time.Now()
		owner.must(t)
		o := q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
		if q.at.Before(released) {
			t.Errorf("Queue: expected it to wait for the owner's Release, seen it granted %v before", released.Sub(q.at))
		}
		if n := q.calls.Load(); n != 1 {
			t.Errorf("Queue of a held lock: expected one call of Waiting, seen %d", n)
		}
		if left := time.Duration(q.left.Load()); left < 0 || left > longTTL+time.Second {
			t.Errorf("Waiting: expected a remaining time from 0 (not known) to the TTL of %v, seen %v", longTTL, left)
		}
		o.undisturbed(t, "after a grant to one who waited", bs[1-i])
		o.must(t)
	}
}

func queueOutlivesTheHolder(t testing.TB, h BackendHarness) {
	bs, _ := queuers(t, h, 3)
	first := grab(t, bs[0], "k", h.brief())
	for i, b := range bs[1:] { // the one who waited dies, too
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		q := queue(ctx, b, "k", h.brief(), nil)
		o := q.granted(t, "Queue to be granted when the time of an owner who has died is over", h.brief()+2*slack)
		if end := first.sent.Add(h.brief()); i == 0 && q.at.Before(end) {
			t.Errorf("Queue: expected nobody to be granted the lock within the owner's TTL, seen it granted %v earlier", end.Sub(q.at))
		}
		first = o
	}
}

func queueServesInOrder(t testing.TB, h BackendHarness) {
	if !h.FIFO {
		t.Skip("the harness does not declare FIFO")
	}
	bs, _ := queuers(t, h, 5)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for range 3 {
		owner := grab(t, bs[0], "k", longTTL)
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i, b := range bs[1:] {
			q := queue(ctx, b, "k", longTTL, nil)
			q.waits(t)
			wg.Go(func() {
				<-q.done
				if q.err != nil {
					t.Errorf("Queue: expected a grant, seen %v", q.err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				q.o.must(t)
			})
		}
		owner.must(t)
		wg.Wait()
		if !slices.IsSorted(order) {
			t.Fatalf("expected grants in the order of arrival, seen %v", order)
		}
	}
}

func queueEndsWithTheContext(t testing.TB, h BackendHarness) {
	bs, _ := queuers(t, h, 2)
	owner := grab(t, bs[0], "k", longTTL)
	bound, tries := h.milliseconds()
	for what, want := range map[string]error{"its deadline": locker.ErrHeld, "its cancellation": locker.ErrHeld, "Closing": locker.ErrClosed} {
		best := time.Hour
		for n := 0; n < tries && best > bound; n++ {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			closing := make(chan struct{})
			var ended time.Time
			switch what {
			case "its deadline":
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), 2*stall)
				ended = time.Now().Add(2 * stall)
			case "its cancellation":
				time.AfterFunc(2*stall, cancel)
				ended = time.Now().Add(2 * stall)
			}
			q := queue(ctx, bs[1], "k", longTTL, closing)
			if what == "Closing" {
				q.waits(t)
				ended = time.Now()
				close(closing)
			}
			await(t, "Queue to return after "+what, q.done, time.Until(ended)+slack)
			cancel()
			best = min(best, q.at.Sub(ended))
			// A deadline may pass before the store has answered for the first time.
			if n == 0 && (h.Bubble != nil || q.calls.Load() > 0) {
				wantKind(t, "Queue after "+what, q.err, want)
			}
		}
		if best > bound {
			t.Errorf("Queue: expected it to return within milliseconds of %s, seen it return %v later", what, best)
		}
	}
	owner.undisturbed(t, "after others have waited in vain", bs[1])
	owner.must(t)
}

func leavingStallsNobody(t testing.TB, h BackendHarness) {
	const rounds = 30
	bs, s := queuers(t, h, 3)
	for i := range rounds {
		owner, _ := grabWhenFree(t, bs[0], "k", longTTL, patience)
		// From before the release to after the claim of a lock that was handed over, in steps that are short at first.
		moment := time.Duration(i-rounds/3) * 100 * time.Microsecond
		leaving, leave := context.WithCancel(t.Context())
		staying, cancel := context.WithTimeout(t.Context(), patience)
		first := queue(leaving, bs[1], "k", longTTL, nil)
		first.waits(t)
		second := queue(staying, bs[2], "k", longTTL, nil)
		second.waits(t)
		if moment < 0 {
			leave()
			time.Sleep(-moment)
		} else {
			time.AfterFunc(moment, leave)
		}
		owner.must(t)
		released := time.Now()
		await(t, "the one who leaves to return", first.done, moment+slack)
		if first.err == nil {
			first.o.must(t)
		}
		o := second.granted(t, "the one behind to be granted the lock", 2*slack)
		if late := second.at.Sub(released); late > slack+moment {
			t.Errorf("expected the lock to go to the one behind soon, seen it there after %v, when the first had left %v after the Release",
				late, moment)
		}
		o.must(t)
		leave()
		cancel()
		if t.Failed() {
			return
		}
	}
	settled(t, bs[0], "k")
	if s.Left != nil {
		nothing(t, s.Left, "after some of those who waited have left", slack)
	}
}

func queueSentIsTheStart(t testing.TB, h BackendHarness) {
	bs, _ := queuers(t, h, 3)
	for range 3 {
		owner, _ := grabWhenFree(t, bs[0], "k", longTTL, patience)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		q := queue(ctx, bs[1], "k", h.brief(), nil)
		q.waits(t)
		time.Sleep(h.brief() / 2)
		owner.must(t)
		o := q.granted(t, "Queue to be granted after the owner's Release", 2*slack)
		cancel()
		if ahead := o.sent.Sub(q.at); ahead > 0 {
			t.Errorf("Sent: expected a time before Queue returned, seen one %v after it", ahead)
		}
		next, at := grabWhenFree(t, bs[2], "k", longTTL, h.brief()+slack)
		if early := o.sent.Add(h.brief()).Sub(at); early > 0 {
			t.Errorf("expected nobody to be granted the lock for %v from Sent, seen it granted %v earlier", h.brief(), early)
		}
		next.must(t)
	}
}

// notifiers makes n Backends of a fresh store that are Notifiers.
func notifiers(t testing.TB, h BackendHarness, n int) ([]locker.Backend, BackendStore) {
	t.Helper()
	bs, s := backends(t, h, n)
	if _, ok := bs[0].(locker.Queuer); ok {
		t.Skip("the Backend is a locker.Queuer: nobody calls Notify")
	}
	if _, ok := bs[0].(locker.Notifier); !ok {
		t.Skip("the Backend is no locker.Notifier: its Client polls")
	}
	return bs, s
}

// woken waits for a call of wake, from before n calls on.
func woken(t testing.TB, what string, calls *atomic.Int32, n int32) {
	t.Helper()
	for end := time.Now().Add(recovery); calls.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("expected wake to be called %s within %v, seen %d calls", what, recovery, calls.Load())
		}
	}
}

func notifyTells(t testing.TB, h BackendHarness) {
	bs, _ := notifiers(t, h, 2)
	for i := range 4 {
		owner := grab(t, bs[i%2], "k", longTTL)
		var calls atomic.Int32
		live, stop := bs[1].(locker.Notifier).Notify("k", func() { calls.Add(1) })
		woken(t, "when it is sure to be told", &calls, 1)
		if !live() {
			t.Error("live: expected true when it is sure to be told, seen false")
		}
		before := calls.Load()
		owner.must(t)
		woken(t, "after the owner's Release", &calls, before+1)
		stop()
	}
}

func notifyStops(t testing.TB, h BackendHarness) {
	bs, _ := notifiers(t, h, 1)
	var calls, others atomic.Int32
	_, stop := bs[0].(locker.Notifier).Notify("k", func() { calls.Add(1) })
	woken(t, "when it is sure to be told", &calls, 1)
	stop()
	before := calls.Load()
	_, stop = bs[0].(locker.Notifier).Notify("k", func() { others.Add(1) }) // another one goes on
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

func lostMessagesDelay(t testing.TB, h BackendHarness) {
	bs, s := queuers(t, h, 2)
	if s.LoseMessages == nil {
		t.Skip("the harness has no LoseMessages")
	}
	for _, deaf := range []bool{false, true} { // first in peace, so that connections are there
		if deaf {
			defer failing(t, s.LoseMessages)()
		}
		owner, _ := grabWhenFree(t, bs[0], "k", longTTL, patience)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		q := queue(ctx, bs[1], "k", longTTL, nil)
		q.waits(t)
		owner.must(t)
		q.granted(t, "Queue to be granted after the owner's Release, messages lost", patience).must(t)
		cancel()
	}
}
