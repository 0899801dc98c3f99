package locker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// over returns a context that has ended, with which Drain only begins, and looks.
func over(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// drains begins a call of Drain, and returns when that waits. The channel receives what it returns.
func drains(ctx context.Context, c *locker.Client) <-chan []string {
	held := make(chan []string, 1)
	go func() { held <- keys(c.Drain(ctx)) }()
	synctest.Wait()
	return held
}

func keys(leases []locker.Lease) (names []string) {
	for _, l := range leases {
		names = append(names, l.Key())
	}
	return names
}

// polledAndQueued runs f in virtual time with Clients of two stores: one has a queue, and one is polled.
func polledAndQueued(t *testing.T, f func(t *testing.T, s *store, c, other *locker.Client)) {
	t.Helper()
	for _, name := range []string{"polled", "queue"} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newStore()
				var b backend.Backend = binding{verifying{s}}
				if name == "queue" {
					b = queuingBinding{queuing{s}, binding{verifying{s}}}
				}
				c, other := locker.NewClient(b), locker.NewClient(s.Backend)
				f(t, s, c, other)
				_, _ = c.Close(), other.Close()
			})
		})
	}
}

// Whatever a program does about locks while it drains: no lock is acquired, waiters are notified at once, and what is
// held stays so.
func TestDrainEndsWaitsAndNoLeases(t *testing.T) {
	polledAndQueued(t, func(t *testing.T, s *store, c, other *locker.Client) {
		held, foreign := mustLock(t, c, "held"), mustLock(t, other, "k")
		front, behind := asks(t.Context(), c, "k"), asks(t.Context(), c, "k")
		select {
		case <-c.Draining():
			t.Error("the Client drains already")
		default:
		}
		start := time.Now()
		drained := drains(t.Context(), c)
		<-c.Draining()
		for _, waits := range []<-chan granted{front, behind} {
			err := (<-waits).err
			wantErr(t, err, locker.ErrDraining, locker.ErrClosed)
			wantKey(t, err, "k")
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the waiter was notified after %v", took)
		}
		asked := s.count("acquire") + s.count("queue")
		for what, call := range map[string]func() error{
			"Lock":    func() error { _, err := c.Lock(t.Context(), "free"); return err },
			"TryLock": func() error { _, err := c.TryLock(t.Context(), "free"); return err },
			"LockAll": func() error { _, err := locker.LockAll(t.Context(), c, []string{"a", "free"}); return err },
			"TryLockAll": func() error {
				_, err := locker.TryLockAll(t.Context(), c, []string{"a", "free"})
				return err
			},
		} {
			if err := call(); !errors.Is(err, locker.ErrDraining) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n := s.count("acquire") + s.count("queue") - asked; n > 0 {
			t.Errorf("%d attempts were sent", n)
		}
		time.Sleep(10 * locker.DefaultTTL)
		if err := held.Err(); err != nil {
			t.Errorf("the lease was not renewed: %v", err)
		}
		if err := held.Extend(t.Context(), locker.TTL(time.Minute)); err != nil {
			t.Error(err)
		}
		if err := locker.Verify(t.Context(), held); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Minute)
		if len(drained) > 0 {
			t.Fatalf("Drain has returned %v beside a lease", <-drained)
		}
		mustUnlock(t, held)
		synctest.Wait()
		if got := <-drained; len(got) > 0 {
			t.Errorf("Drain returned %v", got)
		}
		mustUnlock(t, foreign)
		for _, key := range []string{"held", "k", "free", "a"} {
			mustUnlock(t, mustLock(t, other, key))
		}
	})
}

// The lock of a caller that left its queue goes to the next one in another process.
func TestDrainLeavesTheQueueToOthers(t *testing.T) {
	polledAndQueued(t, func(t *testing.T, _ *store, c, other *locker.Client) {
		foreign := mustLock(t, other, "k")
		leaves := asks(t.Context(), c, "k")
		next := asks(t.Context(), other, "k", locker.NoLocalHandover())
		c.Drain(over(t))
		wantErr(t, (<-leaves).err, locker.ErrDraining, locker.ErrClosed)
		start := time.Now()
		mustUnlock(t, foreign)
		mustUnlock(t, takes(t, "the next", next))
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("the next one waited for %v", took)
		}
	})
}

// When its context ends, Drain says what is held. A second call finds the same, and Close ends both, and the leases.
func TestDrainReturnsWhatIsStillHeld(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		b, a, third := mustLock(t, c, "b"), mustLock(t, c, "a"), mustLock(t, c, "c", locker.NoRenewal())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got := keys(c.Drain(over(t))); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("at once: %v", got)
		}
		start := time.Now()
		if got := keys(c.Drain(ctx)); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("after a minute: %v", got)
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("Drain took %v", took)
		}
		wantErr(t, third.Err(), locker.ErrLost)
		if a.Err() != nil || b.Err() != nil {
			t.Error("the end of Drain has ended a lease")
		}
		mustUnlock(t, a)
		one, two := drains(t.Context(), c), drains(t.Context(), c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, drained := range []<-chan []string{one, two} {
			if got := <-drained; len(got) > 0 {
				t.Errorf("Close has ended the leases, and Drain returned %v", got)
			}
		}
		wantErr(t, b.Err(), locker.ErrLost, locker.ErrClosed)
		if got := c.Drain(t.Context()); len(got) > 0 {
			t.Errorf("after Close: %v", keys(got))
		}
		_, err := c.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrClosed)
		if errors.Is(err, locker.ErrDraining) {
			t.Error("the Client is closed, and does not only drain")
		}
	})
}

// A program that exits when Drain has returned interrupts no release, and leaves no lock of a request that was in
// flight when Drain began.
func TestDrainWaitsForWhatIsInFlight(t *testing.T) {
	slow := func(_ context.Context, next func() error) error {
		time.Sleep(100 * time.Millisecond)
		return next()
	}
	for name, tt := range map[string]struct {
		begin func(t *testing.T, s *store, c *locker.Client) (ended func())
		took  time.Duration
	}{
		"a release": {func(t *testing.T, _ *store, c *locker.Client) func() {
			held, unlocked := mustLock(t, c, "k"), make(chan error, 1)
			go func() { unlocked <- held.Unlock(t.Context()) }()
			return func() {
				if len(unlocked) == 0 || <-unlocked != nil {
					t.Error("Unlock goes on")
				}
			}
		}, 100 * time.Millisecond},
		"attempts": {func(t *testing.T, s *store, c *locker.Client) func() {
			s.on("acquire", slow)
			one, two := asks(t.Context(), c, "k"), asks(t.Context(), c, "another")
			return func() {
				for _, got := range []<-chan granted{one, two} {
					wantErr(t, (<-got).err, locker.ErrDraining, locker.ErrClosed)
				}
				if n := s.count("release"); n != 2 {
					t.Errorf("%d locks were released", n)
				}
			}
		}, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				s.on("release", slow)
				start, ended := time.Now(), tt.begin(t, s, c)
				synctest.Wait()
				if got := <-drains(t.Context(), c); len(got) > 0 || time.Since(start) != tt.took {
					t.Errorf("Drain returned %v after %v", got, time.Since(start))
				}
				synctest.Wait()
				ended()
				other := locker.NewClient(s.Backend)
				defer other.Close()
				mustUnlock(t, mustLock(t, other, "k"))
				mustUnlock(t, mustLock(t, other, "another"))
			})
		})
	}
}

// While the store hangs, waiters are notified nevertheless, and Drain ends with its context. A request that is in
// flight ends as always.
func TestDrainWhileTheStoreHangs(t *testing.T) {
	polledAndQueued(t, func(t *testing.T, s *store, c, other *locker.Client) {
		held, foreign := mustLock(t, c, "held"), mustLock(t, other, "k")
		front, behind := asks(t.Context(), c, "k"), asks(t.Context(), c, "k")
		s.on("acquire", hang)
		s.on("queue", hang)
		s.on("release", hang)
		s.on("extend", hang)
		bounded, end := context.WithTimeout(t.Context(), 3*time.Second)
		defer end()
		inFlight, waits := asks(bounded, c, "another"), asks(t.Context(), c, "another")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		drained := drains(ctx, c)
		for _, got := range []<-chan granted{front, behind, waits} {
			wantErr(t, (<-got).err, locker.ErrDraining, locker.ErrClosed)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the waiter was notified after %v", took)
		}
		if got := <-drained; !slices.Equal(got, []string{"held"}) || time.Since(start) != time.Second {
			t.Errorf("Drain returned %v after %v", got, time.Since(start))
		}
		wantErr(t, (<-inFlight).err, locker.ErrUnavailable, context.DeadlineExceeded)
		if err := held.Unlock(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
		if got := <-drains(t.Context(), c); len(got) > 0 {
			t.Errorf("Drain returned %v", got)
		}
		s.on("release", nil)
		mustUnlock(t, foreign)
	})
}

// A lock is not handed over to a caller that has not heard yet that Drain has begun.
func TestNobodyIsHandedALockOnceDrainHasBegun(t *testing.T) {
	for _, begins := range []bool{false, true} {
		t.Run(fmt.Sprintf("Drain begins: %v", begins), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				told := make(chan struct{})
				stands := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) {
					<-told // the caller is in the queue, and does not hear of Drain yet
				}})
				first, next := block(t, c, s, t.Context(), stands)
				if begins {
					c.Drain(over(t))
				}
				mustUnlock(t, first)
				close(told)
				if g := <-next; begins {
					wantErr(t, g.err, locker.ErrDraining, locker.ErrClosed)
				} else if g.err != nil || g.lease.Token() != first.Token() {
					t.Errorf("the lock was not handed over: %v", g.err)
				}
			})
		})
	}
}

// Callers that need several locks give back those that they have, in one step or one by one, and whatever MinHold says.
func TestDrainWhileLockAllWaits(t *testing.T) {
	for _, wrap := range []func(locker.Locker) locker.Locker{
		func(l locker.Locker) locker.Locker { return l }, func(l locker.Locker) locker.Locker { return plain{l} },
	} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			other := locker.NewClient(s.Backend)
			defer other.Close()
			held := mustLock(t, other, "z")
			failed := make(chan error, 1)
			go func() {
				_, err := locker.LockAll(t.Context(), wrap(c), []string{"a", "b", "z"}, locker.TTL(time.Hour),
					locker.MinHold(time.Minute))
				failed <- err
			}()
			time.Sleep(time.Second)
			start := time.Now()
			drained := c.Drain(t.Context())
			wantErr(t, <-failed, locker.ErrDraining, locker.ErrClosed)
			if took := time.Since(start); took > 0 || len(drained) > 0 {
				t.Errorf("Drain returned %v after %v", keys(drained), took)
			}
			mustUnlock(t, held)
			mustUnlock(t, mustLockAll(t, other, []string{"a", "b", "z"}))
		})
	}
}

// Whoever does work under a lock for the first time after Drain has begun is refused, also within that work.
func TestDrainRefusesFurtherLocksOfAHolder(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
			if got := keys(c.Drain(over(t))); !slices.Equal(got, []string{"k"}) {
				t.Errorf("Drain returned %v", got)
			}
			_, err := c.Lock(ctx, "another")
			return err
		})
		wantErr(t, err, locker.ErrDraining, locker.ErrClosed)
		_, err = c.Lock(t.Context(), "k")
		wantErr(t, err, locker.ErrDraining, locker.ErrClosed)
		if got := c.Drain(t.Context()); len(got) > 0 {
			t.Errorf("Drain returned %v", keys(got))
		}
	})
}

// What a loss or the end of a lease leaves to do does not hold Drain up, and a hook that panics does not, either.
func TestDrainEndsWithLeasesThatAreLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		expires := mustLock(t, c, "k", locker.MaxHold(time.Minute))
		stolen := mustLock(t, c, "stolen")
		s.steal(t, stolen, time.Hour)
		start := time.Now()
		if got := c.Drain(t.Context()); len(got) > 0 {
			t.Errorf("Drain returned %v", keys(got))
		}
		if took := time.Since(start); took > time.Minute || took < 59*time.Second {
			t.Errorf("Drain took %v", took)
		}
		wantErr(t, expires.Err(), locker.ErrLost)
		_ = expires.Unlock(t.Context())
	})
}

// A thousand leases and a thousand callers that wait, in several keys: Drain loses none of the leases, and leaves
// nothing.
func TestDrainOfThousands(t *testing.T) {
	polledAndQueued(t, func(t *testing.T, _ *store, c, other *locker.Client) {
		const n = 1000
		var leases []locker.Lease
		var waits []<-chan granted
		var foreign []locker.Lease
		for i := range n {
			leases = append(leases, mustLock(t, c, fmt.Sprint("held", i), locker.TTL(time.Minute)))
		}
		for i := range 10 {
			foreign = append(foreign, mustLock(t, other, fmt.Sprint("k", i), locker.TTL(time.Hour)))
		}
		for i := range n {
			got := make(chan granted, 1)
			key := fmt.Sprint("k", i%10)
			if i%2 == 0 {
				key = fmt.Sprint("held", i)
			}
			go func() {
				lease, err := c.Lock(t.Context(), key)
				got <- granted{lease, err}
			}()
			waits = append(waits, got)
		}
		time.Sleep(time.Second)
		start := time.Now()
		drained := drains(t.Context(), c)
		for _, got := range waits {
			if g := <-got; !errors.Is(g.err, locker.ErrDraining) {
				t.Fatalf("a caller got %v", g.err)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("the waiter was notified after %v", took)
		}
		for i, l := range leases {
			time.Sleep(time.Second)
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatalf("lease %d: %v", i, err)
			}
		}
		synctest.Wait()
		if got := <-drained; len(got) > 0 || time.Since(start) != n*time.Second {
			t.Errorf("Drain returned %v after %v", got, time.Since(start))
		}
		for _, l := range foreign {
			mustUnlock(t, l)
		}
		if n := locker.Queues(c) + locker.Held(c); n > 0 {
			t.Errorf("%d queues and grants are left", n)
		}
		for i := range n {
			mustUnlock(t, mustLock(t, other, fmt.Sprint("held", i)))
			mustUnlock(t, mustLock(t, other, fmt.Sprint("k", i%10)))
		}
	})
}

// A lock that is granted to a request of before Drain is released as slowly as the store does that, and Drain waits.
func TestDrainWaitsForASlowReleaseOfWhatIsRefused(t *testing.T) {
	polledAndQueued(t, func(t *testing.T, s *store, c, other *locker.Client) {
		slow := func(ctx context.Context, next func() error) error {
			select {
			case <-time.After(400 * time.Millisecond):
				return next()
			case <-ctx.Done():
				return locker.ErrUnavailable
			}
		}
		for _, op := range []string{"acquire", "queue", "release"} {
			s.on(op, slow)
		}
		refused := asks(t.Context(), c, "k", locker.TTL(time.Hour))
		if held := c.Drain(t.Context()); len(held) > 0 {
			t.Errorf("%v is held", held)
		}
		wantErr(t, (<-refused).err, locker.ErrDraining, locker.ErrClosed)
		for _, op := range []string{"acquire", "queue", "release"} {
			s.on(op, nil)
		}
		mustUnlock(t, mustLock(t, other, "k"))
	})
}

// A call that Drain refuses does not wait, so its holder is not told that it is wanted.
func TestDrainRefusesCallersWithoutTellingTheHolder(t *testing.T) {
	polledAndQueued(t, func(t *testing.T, s *store, c, other *locker.Client) {
		held := mustLock(t, c, "k")
		wanted := locker.Wanted(held)
		c.Drain(over(t))
		_, err := c.Lock(t.Context(), "k")
		wantErr(t, err, locker.ErrDraining, locker.ErrClosed)
		select {
		case <-wanted:
			t.Error("a call that was refused counts as waiting")
		default:
		}
		mustUnlock(t, held)
	})
}

// inspected is a store whose inspections take a while.
type inspected struct{ *store }

func (w inspected) Inspect(context.Context, string) (inspect.Inspection, error) {
	time.Sleep(100 * time.Millisecond)
	return inspect.Inspection{State: inspect.Free}, nil
}

func (w inspected) ForceRelease(ctx context.Context, key, _ string) (inspect.Inspection, error) {
	return w.Inspect(ctx, key)
}

// Inspections that overlap all the time hold up no Drain, and Close waits for them.
func TestDrainDoesNotWaitForInspections(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := locker.NewClient(inspected{newStore()})
		ctx, stop := context.WithCancel(t.Context())
		for n := range 2 {
			go func() {
				time.Sleep(time.Duration(n) * 50 * time.Millisecond)
				for ctx.Err() == nil {
					_, _ = c.Inspect(ctx, "k")
				}
			}()
		}
		time.Sleep(time.Second)
		start := time.Now()
		if c.Drain(t.Context()); time.Since(start) > 0 {
			t.Errorf("nothing is held, and Drain took %v", time.Since(start))
		}
		stop()
		_ = c.Close()
	})
}
