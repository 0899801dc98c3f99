package single_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// eachDriver runs f for every driver with a client of its own making; with -short, for one of them.
func eachDriver(t *testing.T, f func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver)) {
	for _, name := range short.Part(t, 1, drivers.Names()) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, builders[name])
		})
	}
}

// lostBecause checks why a lease ended.
func lostBecause(t *testing.T, err error, want locker.LostReason) {
	t.Helper()
	var lost *locker.LostError
	if !errors.As(err, &lost) || lost.Reason != want {
		t.Errorf("got %v, want that the lock was lost: %s", err, want)
	}
}

// pttl returns how long the server keeps the lock, and a moment before which it does not forget it.
func pttl(t *testing.T, s *redistest.Server) (left time.Duration, notBefore time.Time) {
	t.Helper()
	asked := time.Now()
	left = s.PTTL(t, "lock:k")
	return left, asked.Add(left)
}

// A holder is cut off: nothing it sends arrives any more, and the connections stay open. It knows that it has lost the
// lock before the server gives it to somebody else.
func TestPartitionedHolderStopsBeforeTheKeyIsFree(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		other := closing(t, single.New(build(t, s.Addr())))
		// A busy machine may wake the holder tens of milliseconds late now and then; what is wrong is late every time.
		var spare time.Duration
		for try := 0; try == 0 || try < 8 && spare <= 0; try++ {
			spare = partition(t, s, other, build, ttl)
			t.Logf("Done closed, and Until was, %v before the server forgot the key", spare.Round(time.Millisecond))
		}
		if spare <= 0 {
			t.Errorf("Done closed, or Until was, %v after the key was free, at best", -spare)
		}
	})
}

// partition cuts a holder off, and returns by how much Done closed, and Until was, before the key could be taken.
func partition(t *testing.T, s *redistest.Server, other *locker.Client,
	build func(t testing.TB, addr string) drivers.Driver, ttl time.Duration,
) (spare time.Duration) {
	proxy := fault.New(t, s.Addr())
	c := closing(t, single.New(build(t, proxy.Addr()), single.Timeout(time.Second)))
	renewed := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(lockertrace.With(t.Context(),
		&lockertrace.Trace{Renewed: func(r lockertrace.Renewal) {
			if r.Err == nil {
				renewed <- struct{}{}
			}
		}}))
	defer cancel()
	type taken struct {
		lease locker.Lease
		err   error
		at    time.Time
	}
	next := make(chan taken, 1)
	err := locker.Do(ctx, c, "k", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		go func() {
			l, err := other.Lock(t.Context(), "k", locker.TTL(time.Minute))
			next <- taken{l, err, time.Now()}
		}()
		<-renewed
		proxy.Handle(func(fault.Request) fault.Action { return fault.Hold })
		left, free := pttl(t, s)
		if left <= 0 {
			t.Fatalf("PTTL %v while the lock is held", left)
		}
		<-ctx.Done()
		spare = min(time.Until(free), free.Sub(lease.Until()))

		lostBecause(t, context.Cause(ctx), locker.LostExpired)
		lostBecause(t, lease.Err(), locker.LostExpired)
		cancel() // so that Unlock does not wait for an answer for long
		return nil
	}, locker.TTL(ttl))
	wantErr(t, err, locker.ErrLost, locker.ErrReleaseUnknown)

	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	// What was on its way arrives now: it must not touch the lock of the other.
	proxy.Handle(nil)
	proxy.Release()
	eventually(t, 30*time.Second, "the late release is answered", func() bool {
		_, err := c.TryLock(t.Context(), "k")
		return errors.Is(err, locker.ErrHeld)
	})
	if left, _ := pttl(t, s); left < 30*time.Second {
		t.Errorf("the other's lock has %v left: it was shortened", left)
	}
	if err := steady.Release(got.lease); err != nil {
		t.Errorf("the other was robbed: %v", err)
	}
	return spare
}

// A lock that somebody deletes or takes by hand is missed by the next renewal, a third of the TTL later at most.
func TestLossByHandIsNoticedByTheNextRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	for reason, rob := range map[locker.LostReason][]any{
		locker.LostGone:      {"DEL", "lock:k"},
		locker.LostTakenOver: {"SET", "lock:k", "somebody", "PX", 60000},
	} {
		t.Run(string(reason), func(t *testing.T) {
			eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				s := redistest.Start(t)
				c := closing(t, single.New(build(t, s.Addr())))
				// Generous, but less than what is left of the TTL, after which the holder would have known anyway; the
				// best of several tries, for machines stall.
				const most, tries = ttl/3 + time.Second, 4
				for n := 1; ; n++ {
					var took time.Duration
					var cause error
					err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
						s.Cmd(t, rob...)
						robbed := time.Now()
						<-ctx.Done()
						took, cause = time.Since(robbed), context.Cause(ctx)
						return nil
					}, locker.TTL(ttl))
					if took > most && n < tries {
						s.Cmd(t, "DEL", "lock:k")
						continue
					}
					if took > most {
						t.Errorf("noticed after %v", took)
					}
					lostBecause(t, cause, reason)
					wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
					lostBecause(t, err, reason)
					break
				}
			})
		})
	}
}

// A lock whose MaxHold is over is lost for its holder, but stays taken until it is unlocked or its TTL ends.
func TestMaxHold(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		c, other := closing(t, single.New(build(t, s.Addr()))), closing(t, single.New(build(t, s.Addr())))
		const most = 300 * time.Millisecond
		var start time.Time
		var l locker.Lease
		var err error
		for range 20 {
			start = time.Now()
			l, err = c.Lock(t.Context(), "k", locker.TTL(ttl), locker.MaxHold(most))
			if err == nil || time.Since(start) < most { // or it was granted when that was over
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if until := l.Until(); until.After(time.Now().Add(most)) {
			t.Errorf("Until is %v after the start", until.Sub(start))
		}
		select {
		case <-l.Done():
		case <-time.After(10 * time.Second):
		}
		lostBecause(t, l.Err(), locker.LostMaxHold)
		if left, _ := pttl(t, s); left < time.Minute {
			t.Errorf("the key has %v left", left)
		}
		_, err = other.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrHeld)
		steady.Unlock(t, l)
		if left, _ := pttl(t, s); left > 0 {
			t.Errorf("the key has %v left after Unlock", left)
		}
	})
}
