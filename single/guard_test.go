package single_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/single"
)

// A short guard, with which a server rests for a little more than three seconds.
const (
	guarded = time.Second
	rest    = guarded + guarded/50 + 2*time.Second
)

// resting waits until a client has found that the server has to rest.
func resting(t *testing.T, s *redistest.Server) {
	t.Helper()
	eventually(t, 30*time.Second, "the rest has begun", func() bool { return len(s.Keys(t, "{*}}lock:guard")) == 1 })
}

// bootstrap ends the rest of a server whose clients have these options.
func bootstrap(t *testing.T, d drivers.Driver, opts ...single.Option) {
	t.Helper()
	if err := errors.Join(single.Bootstrap(t.Context(), d, opts...), d.Close()); err != nil {
		t.Fatal(err)
	}
}

// refused returns the errors of TryLock and Lock.
func refused(t *testing.T, c *locker.Client, opts ...locker.Option) []error {
	_, try := c.TryLock(t.Context(), "k", opts...)
	_, lock := c.Lock(t.Context(), "k", opts...)
	return []error{try, lock}
}

// restOf returns for how long the server rests, according to err.
func restOf(t *testing.T, err error) time.Duration {
	t.Helper()
	wantErr(t, err, locker.ErrUnavailable)
	var resting *locker.GracePeriodError
	if !errors.As(err, &resting) || resting.Node != "redis" || resting.Remaining <= 0 || resting.Remaining > rest {
		t.Fatalf("%v is not the error of a server that rests", err)
	}
	if want := "redis rests for another"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say %q", err, want)
	}
	return resting.Remaining
}

// Bootstrap ends with its context, also while the server hangs, and with every way to reach it.
func TestBootstrapEndsWithItsContext(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		d := build(t, s.Addr())
		if err := single.Bootstrap(t.Context(), d, single.Guard(guarded)); err != nil {
			t.Fatal(err)
		}
		s.Pause()
		promptly(t, 100*time.Millisecond, func() time.Duration {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			begun := time.Now()
			wantErr(t, single.Bootstrap(ctx, d, single.Guard(guarded)), locker.ErrUnavailable)
			return time.Since(begun)
		})
		s.Resume()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A new server rests from when a client with a guard is made, and then grants locks. Bootstrap skips that.
func TestNewServerRests(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		ttl := locker.TTL(guarded)
		c := closing(t, single.New(build(t, s.Addr()), single.Guard(guarded)))
		resting(t, s)
		_, err := c.TryLock(t.Context(), "k", ttl)
		left := restOf(t, err)
		if _, err = c.Lock(t.Context(), "k", ttl); restOf(t, err) > left {
			t.Error("the rest has begun again")
		}
		if keys := s.Left(t); len(keys) > 0 {
			t.Errorf("left behind: %q", keys)
		}
		eventually(t, rest+10*time.Second, "the rest is over", func() bool {
			l, err := c.TryLock(t.Context(), "k", ttl)
			return err == nil && l.Unlock(t.Context()) == nil
		})

		s.Cmd(t, "FLUSHALL")
		_, err = c.TryLock(t.Context(), "k", ttl)
		restOf(t, err)
		d := build(t, s.Addr())
		defer func() { _ = d.Close() }()
		if err := single.Bootstrap(t.Context(), d, single.Guard(guarded)); err != nil {
			t.Fatal(err)
		}
		if err := mustTry(t, c, ttl).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := d.Do(t.Context(), drivers.Command{"PING"}); err != nil {
			t.Errorf("the driver is closed: %v", err)
		}
		if err := single.Bootstrap(t.Context(), d); !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("without a guard: %v", err)
		}
	})
}

// A server that restarts empty rests until its forgotten locks have ended. A waiter tolerates that for its patience,
// and does not ask again and again.
func TestWaiterBearsTheRest(t *testing.T) {
	anyDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		opts := []single.Option{single.Guard(guarded)}
		bootstrap(t, build(t, s.Addr()), opts...)
		holder := closing(t, single.New(build(t, s.Addr()), opts...))
		patient := closing(t, single.New(build(t, s.Addr()), opts...))
		hasty := closing(t, single.New(build(t, s.Addr()), opts...))
		lease := mustTry(t, holder, locker.TTL(guarded), locker.NoRenewal())
		later := lockLater(t, patient, locker.TTL(guarded), locker.Patience(time.Minute))
		soon := lockLater(t, hasty, locker.TTL(guarded), locker.Patience(100*time.Millisecond))
		waits := func() bool { return connections(t, s) == 2 }
		eventually(t, 30*time.Second, "both wait", waits)
		s.Kill()
		s.Restart()
		restarted := time.Now()
		if o := <-soon; o.err == nil || !errors.Is(o.err, locker.ErrUnavailable) {
			t.Errorf("without patience: %v", o.err)
		}
		resting(t, s)
		before := roundTrips(t, s)
		got := take(t, later)
		if until := lease.Until(); got.Before(until) {
			t.Errorf("another has the lock %v before the lease ends", until.Sub(got))
		}
		if rested := got.Sub(restarted); rested < rest-100*time.Millisecond {
			t.Errorf("the server has rested for %v, want %v", rested, rest)
		}
		// How many calls there were before depends on how long the connections were away.
		if n := roundTrips(t, s) - before; n > 6 {
			t.Errorf("%d calls for one lock", n)
		}
	})
}

// What the guard does not cover is refused before anything is sent.
func TestLongerThanTheGuard(t *testing.T) {
	var asked atomic.Int32
	d := countingDriver{&asked}
	c := closing(t, single.New(d, single.Guard(30*time.Second)))
	eventually(t, 30*time.Second, "the touch was sent", func() bool { return asked.Load() > 0 })
	for text, opts := range map[string][]locker.Option{
		"TTL 31s is above the 30s":      {locker.TTL(31 * time.Second)},
		"MinHold 1m0s is above the 30s": {locker.MinHold(time.Minute)},
	} {
		for _, err := range refused(t, c, opts...) {
			if !errors.Is(err, locker.ErrInvalid) || !strings.Contains(err.Error(), text) {
				t.Errorf("%v, want %q", err, text)
			}
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
}

// countingDriver refuses everything.
type countingDriver struct{ asked *atomic.Int32 }

func (d countingDriver) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	d.asked.Add(1)
	replies := make([]drivers.Reply, len(cmds))
	for i := range replies {
		replies[i] = drivers.ServerError("LOADING")
	}
	return replies, nil
}
func (countingDriver) Close() error { return nil }

// Errors of a guard that cannot work say what to do, and nobody waits for long.
func TestGuardThatCannotWork(t *testing.T) {
	anyDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		bootstrap(t, build(t, s.Addr()), single.Guard(30*time.Second))
		c := closing(t, single.New(build(t, s.Addr()), single.Guard(10*time.Second)))
		for _, err := range refused(t, c) {
			if text := "up to 10s, and that of other clients with the same prefix for up to 30s"; !errors.Is(err,
				locker.ErrInvalid) || !strings.Contains(err.Error(), text) {
				t.Errorf("another guard: %v", err)
			}
		}
		s.User(t, "default", "-info")
		c = closing(t, single.New(build(t, s.Addr()), single.Guard(30*time.Second)))
		_, err := c.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrUnavailable)
		if !strings.Contains(fmt.Sprint(err), "the restart guard needs INFO inside of scripts") {
			t.Errorf("no INFO: %v", err)
		}
		if keys := s.Left(t); len(keys) > 0 {
			t.Errorf("left behind: %q", keys)
		}
	})
}

// Behind a cluster each slot rests by itself, and Bootstrap ends the rest of all.
func TestGuardOnACluster(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		for _, s := range c.Masters {
			s.Cmd(t, "FLUSHALL")
		}
		plain := build()
		mustTry(t, plain) // nobody is kept from anything without a guard
		for name, open := range clusterBuilders {
			if !strings.HasSuffix(t.Name(), name) {
				continue
			}
			l := closing(t, single.New(open(t, c.Addrs()), single.Guard(30*time.Second)))
			for _, key := range []string{"a", "b", "c", "d"} {
				if _, err := l.TryLock(t.Context(), key); !errors.As(err, new(*locker.GracePeriodError)) {
					t.Errorf("%s: %v", key, err)
				}
			}
			start := time.Now()
			bootstrap(t, open(t, c.Addrs()), single.Guard(30*time.Second))
			t.Logf("all slots in %v", time.Since(start))
			markers := 0
			for _, s := range c.Masters {
				markers += len(s.Keys(t, "{*}}lock:guard"))
			}
			if markers != 16384 {
				t.Errorf("%d markers", markers)
			}
			for _, key := range []string{"a", "b", "c", "d", "e"} {
				if _, err := l.TryLock(t.Context(), key); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
	})
}

// A client that does not know that its server belongs to a cluster finds out by the first refusal, and uses the marker
// of the slot.
func TestGuardOfOneServerOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	key := keyOn(t, c, c.Masters[0])
	d := opened("redigo")(t, c.Masters[0].Addr())
	l := closing(t, single.New(d, single.Guard(30*time.Second)))
	if _, err := l.TryLock(t.Context(), key); !errors.As(err, new(*locker.GracePeriodError)) {
		t.Error(err)
	}
}

// A guard that no lock fits in leaves no marker, which would keep clients with another guard from their locks.
func TestGuardBelowTheMinimum(t *testing.T) {
	for _, bad := range []time.Duration{-time.Second, locker.MinTTL - 1} {
		n := simnode.New()
		c := single.New(n.Driver(nil), single.Guard(bad))
		errs := append(refused(t, c), single.Bootstrap(t.Context(), n.Driver(nil), single.Guard(bad)), c.Close())
		for _, err := range errs[:3] {
			if !errors.Is(err, locker.ErrInvalid) || !strings.Contains(err.Error(), "below the minimum of 10ms") {
				t.Errorf("a guard of %v: %v", bad, err)
			}
		}
		if errs[3] != nil {
			t.Error(errs[3])
		}
		for _, err := range refused(t, closing(t, single.New(n.Driver(nil), single.Guard(time.Hour)))) {
			if !errors.As(err, new(*locker.GracePeriodError)) {
				t.Errorf("after a guard of %v: %v", bad, err)
			}
		}
	}
}
