package telemetry_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/memory"
)

// key is long enough not to occur in other texts.
const key = "orders:42"

// scenario is a program and what must be recorded of it: the spans in the order in which they began, with times,
// attributes and events, and all data points.
type scenario struct {
	name           string
	do             func(r *recorder, s *store, l locker.Locker)
	spans, metrics string
}

var scenarios = []scenario{
	{"uncontended", func(r *recorder, _ *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		time.Sleep(time.Second)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.unlock 1s-1s in request of locker.lock
			held=1 operation=unlock outcome=unlocked remaining=8.898 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 1
		lease.remaining {} 1: 8.898
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"contended", func(r *recorder, _ *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		time.AfterFunc(3*time.Second, func() { _ = lease.Unlock(context.Background()) })
		time.Sleep(time.Second)
		lease = must(l.Lock(r.request(), key))
		time.Sleep(time.Second)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lock 1s-3s in request
			attempts=1 fence=2 holder=web-7 operation=lock outcome=acquired waited=2
			1s wait: remaining=9
			3s wake: slept=2 wake.reason=handover
			3s attempt: duration=2 outcome=acquired
		locker.unlock 3s-3s of locker.lock
			held=3 operation=unlock outcome=unlocked remaining=6.898 renewals.failed=0 renewals=0
		locker.unlock 4s-4s in request of locker.lock
			held=1 operation=unlock outcome=unlocked remaining=8.898 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 2: 4
		lease.remaining {} 2: 15.8
		lock.acquire.duration {operation=lock outcome=acquired} 2: 2
		lock.attempts {operation=lock outcome=acquired} 2: 2
		lock.contentions {operation=lock} 1
		lock.wait.duration {operation=lock outcome=acquired} 1: 2
		lock.waiters {} 0
	`},
	{"handed over within the client", func(r *recorder, s *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		var wg sync.WaitGroup
		for range 2 { // the first of them asks for several tokens when it is granted the lock, because the second waits
			wg.Go(func() {
				lease := must(l.Lock(r.request(), key))
				time.Sleep(10 * time.Millisecond)
				_ = lease.Unlock(r.request())
			})
			time.Sleep(time.Second)
		}
		_ = lease.Unlock(r.request())
		wg.Wait()
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lock 0s-2s in request
			attempts=1 fence=2 holder=web-7 operation=lock outcome=acquired waited=2
			0s wait: remaining=10
			2s wake: slept=2 wake.reason=handover
			2s attempt: duration=2 outcome=acquired
		locker.lock 1s-2.01s in request
			attempts=0 fence=3 handover=local holder=web-7 operation=lock outcome=acquired waited=1.01
			1s wait: remaining=0
			2.01s wake: slept=1.01 wake.reason=local
		locker.unlock 2s-2s in request of locker.lock
			held=2 operation=unlock outcome=unlocked remaining=7.898 renewals.failed=0 renewals=0
		locker.unlock 2.01s-2.01s in request of locker.lock
			held=0.01 operation=unlock outcome=unlocked remaining=9.888 renewals.failed=0 renewals=0
		locker.unlock 2.02s-2.02s in request of locker.lock
			held=0.01 operation=unlock outcome=unlocked remaining=9.878 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 3: 2.02
		lease.remaining {} 3: 27.66
		lock.acquire.duration {handover=local operation=lock outcome=acquired} 1: 1.01
		lock.acquire.duration {operation=lock outcome=acquired} 2: 2
		lock.attempts {operation=lock outcome=acquired} 2: 2
		lock.contentions {operation=lock} 2
		lock.wait.duration {handover=local operation=lock outcome=acquired} 1: 1.01
		lock.wait.duration {operation=lock outcome=acquired} 1: 2
		lock.waiters {} 0
	`},
	{"held", func(r *recorder, _ *store, l locker.Locker) {
		lease := must(l.TryLock(r.request(), key))
		_, _ = l.TryLock(r.request(), key)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=trylock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lock 0s-0s in request
			attempts=1 holder=web-7 operation=trylock outcome=held
			0s attempt: duration=0 outcome=held
		locker.unlock 0s-0s in request of locker.lock
			held=0 operation=unlock outcome=unlocked remaining=9.898 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 0
		lease.remaining {} 1: 9.898
		lock.acquire.duration {operation=trylock outcome=acquired} 1: 0
		lock.acquire.duration {operation=trylock outcome=held} 1: 0
		lock.attempts {operation=trylock outcome=acquired} 1: 1
		lock.attempts {operation=trylock outcome=held} 1: 1
		lock.contentions {operation=trylock} 1
	`},
	{"waits that end", func(r *recorder, _ *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		ctx, cancel := context.WithCancel(r.request())
		time.AfterFunc(time.Second, cancel)
		_, _ = l.Lock(ctx, key)
		ctx, cancel = context.WithTimeout(r.request(), time.Second)
		defer cancel()
		_, _ = l.Lock(ctx, key)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lock 0s-1s in request
			attempts=1 holder=web-7 operation=lock outcome=cancelled waited=1
			0s wait: remaining=10
			1s attempt: duration=1 outcome=held
		locker.lock 1s-2s in request
			attempts=1 holder=web-7 operation=lock outcome=timeout waited=1
			1s wait: remaining=9
			2s attempt: duration=1 outcome=held
		locker.unlock 2s-2s in request of locker.lock
			held=2 operation=unlock outcome=unlocked remaining=7.898 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 2
		lease.remaining {} 1: 7.898
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.acquire.duration {operation=lock outcome=cancelled} 1: 1
		lock.acquire.duration {operation=lock outcome=timeout} 1: 1
		lock.attempts {operation=lock outcome=acquired} 1: 1
		lock.attempts {operation=lock outcome=cancelled} 1: 1
		lock.attempts {operation=lock outcome=timeout} 1: 1
		lock.contentions {operation=lock} 2
		lock.wait.duration {operation=lock outcome=cancelled} 1: 1
		lock.wait.duration {operation=lock outcome=timeout} 1: 1
		lock.waiters {} 0
	`},
	{"renewed", func(r *recorder, _ *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		time.Sleep(time.Minute)
		_ = lease.Extend(r.request())
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.extend 1m0s-1m0s in request of locker.lock
			operation=extend outcome=extended
		locker.unlock 1m0s-1m0s in request of locker.lock
			held=60 operation=unlock outcome=unlocked remaining=9.898 renewals.failed=0 renewals=18
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 60
		lease.remaining {} 1: 9.898
		lease.renewals {outcome=renewed} 18
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"in doubt for a while", func(r *recorder, s *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		s.fail("extend")
		time.Sleep(6 * time.Second)
		s.fail("")
		time.Sleep(6 * time.Second)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.renew 3.333333333s-3.333333333s of locker.lock Error: lock store unavailable: connection refused
			error.type=unavailable outcome=error
		locker.renew 6.333333333s-6.333333333s of locker.lock
			outcome=renewed
		locker.unlock 12s-12s in request of locker.lock
			held=12 operation=unlock outcome=unlocked remaining=7.564666666 renewals.failed=3 renewals=2
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 12
		lease.remaining {} 1: 7.565
		lease.renewals {error.type=unavailable outcome=error} 3
		lease.renewals {outcome=renewed} 2
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"expired", func(r *recorder, s *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		s.fail("extend")
		<-lease.Done()
		time.Sleep(time.Second)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.renew 3.333333333s-3.333333333s of locker.lock Error: lock store unavailable: connection refused
			error.type=unavailable outcome=error
		locker.lost 9.847s-9.847s of locker.lock Error: lock lost: expired` +
		`: the last renewal failed: lock store unavailable: connection refused
			error.type=lost held=9.847 lost.reason=expired
		locker.unlock 10.847s-10.847s in request of locker.lock Error: no longer held: lock lost: expired` +
		`: the last renewal failed: lock store unavailable: connection refused
			error.type=not_held lost.reason=expired operation=unlock outcome=error` +
		` remaining=0 renewals.failed=7 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {lost.reason=expired outcome=lost} 1: 9.847
		lease.lost {lost.reason=expired} 1
		lease.remaining {} 1: 0
		lease.renewals {error.type=unavailable outcome=error} 7
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"deleted", func(r *recorder, s *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		_ = s.Release(context.Background(), backend.Request{Key: key, Token: lease.Token()})
		<-lease.Done()
		_ = lease.Extend(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.extend 3.333333333s-3.333333333s in request of locker.lock Error: lock lost: gone
			error.type=lost operation=extend outcome=error
		locker.lost 3.333333333s-3.333333333s of locker.lock Error: lock lost: gone
			error.type=lost held=3.333333333 lost.reason=gone
	`, `
		lease.active {} 0
		lease.hold.duration {lost.reason=gone outcome=lost} 1: 3.333
		lease.lost {lost.reason=gone} 1
		lease.renewals {outcome=lost} 1
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"gone when it is unlocked", func(r *recorder, s *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		_ = s.Release(context.Background(), backend.Request{Key: key, Token: lease.Token()})
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.unlock 0s-0s in request of locker.lock Error: no longer held: lock lost: gone
			error.type=not_held held=0 lost.reason=gone operation=unlock outcome=error` +
		` remaining=9.898 renewals.failed=0 renewals=0
	`, `
		lease.active {} 0
		lease.hold.duration {lost.reason=gone outcome=lost} 1: 0
		lease.lost {lost.reason=gone} 1
		lease.remaining {} 1: 9.898
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"unlocked twice", func(r *recorder, _ *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		_ = lease.Unlock(r.request())
		time.Sleep(time.Second)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.unlock 0s-0s in request of locker.lock
			held=0 operation=unlock outcome=unlocked remaining=9.898 renewals.failed=0 renewals=0
		locker.unlock 1s-1s in request of locker.lock
			operation=unlock outcome=already_unlocked
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 0
		lease.remaining {} 1: 9.898
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"unlocked without an answer", func(r *recorder, s *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key))
		s.fail("release")
		_ = lease.Unlock(r.request())
		s.fail("")
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.unlock 0s-0s in request of locker.lock Error: lock store unavailable: connection refused
			error.type=unavailable held=0 operation=unlock outcome=error remaining=9.898 renewals.failed=0 renewals=0
		locker.unlock 0s-0s in request of locker.lock
			operation=unlock outcome=unlocked
	`, `
		lease.active {} 0
		lease.hold.duration {error.type=unavailable outcome=unlocked} 1: 0
		lease.remaining {} 1: 9.898
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"held for too long", func(r *recorder, s *store, l locker.Locker) {
		lease := must(l.Lock(r.request(), key, locker.MaxHold(5*time.Second)))
		<-lease.Done()
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lost 4.949s-4.949s of locker.lock Error: lock lost: max hold reached
			error.type=lost held=4.949 lost.reason=max hold reached
		locker.unlock 4.949s-4.949s in request of locker.lock
			operation=unlock outcome=unlocked remaining=0 renewals.failed=0 renewals=1
	`, `
		lease.active {} 0
		lease.hold.duration {lost.reason=max hold reached outcome=lost} 1: 4.949
		lease.lost {lost.reason=max hold reached} 1
		lease.remaining {} 1: 0
		lease.renewals {outcome=renewed} 1
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"closed under a lease", func(r *recorder, s *store, l locker.Locker) {
		_ = must(l.Lock(r.request(), key))
		c, _ := locker.As[*locker.Client](l)
		_ = c.Close()
		_, _ = l.Lock(r.request(), key)
	}, `
		locker.lock 0s-0s in request
			attempts=1 fence=1 operation=lock outcome=acquired
			0s attempt: duration=0 outcome=acquired
		locker.lock 0s-0s in request Error: client is closed
			attempts=0 error.type=closed operation=lock outcome=error
		locker.lost 0s-0s of locker.lock Error: lock lost: closed
			error.type=lost held=0 lost.reason=closed
	`, `
		lease.active {} 0
		lease.hold.duration {lost.reason=closed outcome=lost} 1: 0
		lease.lost {lost.reason=closed} 1
		lock.acquire.duration {error.type=closed operation=lock outcome=error} 1: 0
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0
		lock.attempts {operation=lock outcome=acquired} 1: 1
	`},
	{"unavailable", func(r *recorder, s *store, l locker.Locker) {
		s.fail("queue")
		_, _ = l.Lock(r.request(), key)
	}, `
		locker.lock 0s-0s in request Error: lock store unavailable: connection refused
			attempts=1 error.type=unavailable operation=lock outcome=error
			0s attempt: duration=0 error.type=unavailable outcome=error
	`, `
		lock.acquire.duration {error.type=unavailable operation=lock outcome=error} 1: 0
		lock.attempts {error.type=unavailable operation=lock outcome=error} 1: 1
	`},
	{"bad input", func(r *recorder, _ *store, l locker.Locker) {
		_, _ = l.Lock(r.request(), key, locker.TTL(time.Millisecond))
	}, `
		locker.lock 0s-0s in request Error: invalid argument: TTL 1ms is below the minimum of 10ms
			attempts=0 error.type=invalid operation=lock outcome=error
	`, `
		lock.acquire.duration {error.type=invalid operation=lock outcome=error} 1: 0
	`},
}

func TestWhatIsRecorded(t *testing.T) { recorded(t, scenarios) }

func recorded(t *testing.T, scenarios []scenario) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			spans, metrics := record(t, func(r *recorder) {
				store := &store{Backend: memory.NewBackend(), tokens: &r.tokens}
				c := locker.NewClient(store)
				s.do(r, store, r.wrap(locker.Wrap(c, locker.Defaults(locker.Label("web-7")))))
				_ = c.Close()
			})
			same(t, "spans", spans, s.spans)
			same(t, "metrics", metrics, s.metrics)
		})
	}
}

func must[L any](l L, err error) L {
	if err != nil {
		panic(err)
	}
	return l
}
