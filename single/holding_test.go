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
