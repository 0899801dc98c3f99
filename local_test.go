package locker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

// queuing is a store whose waiters queue in it.
type queuing struct{ *store }

func (s queuing) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (g backend.Grant, err error) {
	err = s.call(ctx, "queue", func() (err error) {
		g, err = s.Backend.(backend.Queuer).Queue(ctx, req, wait)
		return err
	})
	return g, err
}

// granted is the outcome of a call of Lock.
type granted struct {
	lease locker.Lease
	err   error
}

// asks begins a call of Lock, and returns when that waits.
func asks(ctx context.Context, c locker.Locker, key string, opts ...locker.Option) <-chan granted {
	got := make(chan granted, 1)
	go func() {
		lease, err := c.Lock(ctx, key, opts...)
		got <- granted{lease, err}
	}()
	synctest.Wait()
	return got
}

// takes returns the lease that a call of Lock is granted within the TTL.
func takes(t *testing.T, who string, got <-chan granted) locker.Lease {
	t.Helper()
	select {
	case g := <-got:
		if g.err != nil {
			t.Fatalf("%s: %v", who, g.err)
		}
		return g.lease
	case <-time.After(locker.DefaultTTL + time.Second):
		t.Fatalf("%s does not get the lock", who)
		return nil
	}
}

// local runs f in virtual time, with stores whose waiters poll and stores that have a queue. first has the lock, by a
// request that was sent while the second caller waited, and next is the Lock of that.
func local(
	t *testing.T, first, second []locker.Option,
	f func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted),
) {
	t.Helper()
	for _, name := range []string{"polled", "queue"} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newStore()
				var b backend.Backend = binding{verifying{s}}
				if name == "queue" {
					b = queuingBinding{queuing{s}, binding{verifying{s}}}
				}
				c := locker.NewClient(b)
				before := mustLock(t, c, "k")
				held := asks(t.Context(), c, "k", locker.NoLocalHandover())
				one := asks(t.Context(), c, "k", first...)
				two := asks(t.Context(), c, "k", second...)
				if err := before.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				if err := takes(t, "the one before", held).Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				f(t, s, c, takes(t, "the first", one), two)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// handed checks that next got its lock from lease.
func handed(t *testing.T, lease locker.Lease, next <-chan granted) locker.Lease {
	t.Helper()
	synctest.Wait()
	if len(next) == 0 {
		t.Fatal("the lock was not handed over")
	}
	l := takes(t, "the next", next)
	if l.Token() != lease.Token() || l.Fence() != lease.Fence()+1 {
		t.Fatalf("the next has the token %d after %d, and the owner value %s after %s",
			l.Fence(), lease.Fence(), l.Token(), lease.Token())
	}
	return l
}

func TestLockIsHandedOverWithinTheProcess(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		until, released := first.Until(), s.count("release")
		third := asks(t.Context(), c, "k")
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		second := handed(t, first, next)
		if !second.Until().Equal(until) {
			t.Errorf("Until is %v, and the store has confirmed %v", second.Until(), until)
		}
		wantErr(t, first.Err(), locker.ErrUnlocked)
		if !isDone(first) || isDone(second) || second.Err() != nil {
			t.Error("the first lease must be over, and the second must not")
		}
		// What is late of the first does not touch the second.
		wantErr(t, first.Unlock(t.Context()), locker.ErrUnlocked)
		wantErr(t, first.Extend(t.Context()), locker.ErrUnlocked)
		wantErr(t, first.Extend(t.Context(), locker.TTL(time.Hour)), locker.ErrUnlocked)
		wantErr(t, locker.Verify(t.Context(), first), locker.ErrUnlocked)
		if second.Err() != nil || s.count("release") != released {
			t.Errorf("the second lease has ended: %v", second.Err())
		}
		if err := locker.Verify(t.Context(), second); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
		if err := second.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		last := handed(t, second, third)
		if err := last.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if got := s.count("release") - released; got != 1 {
			t.Errorf("%d releases were sent, want one", got)
		}
		mustLock(t, c, "k")
	})
}

// The store is asked whenever the next caller must not have what the first one has.
func TestLockIsNotHandedOverWithinTheProcess(t *testing.T) {
	type options = []locker.Option
	for name, tt := range map[string]struct {
		first, second options
		before        func(t *testing.T, s *store, c *locker.Client, first locker.Lease)
	}{
		"the first has NoLocalHandover":  {first: options{locker.NoLocalHandover()}},
		"the first has MaxHold":          {first: options{locker.MaxHold(time.Minute)}},
		"the first has MinHold":          {first: options{locker.MinHold(time.Millisecond)}},
		"the second has NoLocalHandover": {second: options{locker.NoLocalHandover()}},
		"the second has MaxHold":         {second: options{locker.MaxHold(time.Minute)}},
		"the second has MinHold":         {second: options{locker.MinHold(time.Millisecond)}},
		"the second has another TTL":     {second: options{locker.TTL(9 * time.Second)}},
		"the second has another label":   {second: options{locker.Label("another")}},
		"the second is renewed":          {first: options{locker.NoRenewal()}},
		"the second is not renewed":      {second: options{locker.NoRenewal()}},
		"50 ms are over":                 {before: after(51 * time.Millisecond)},
		"a twentieth of the TTL is over": {
			options{locker.TTL(200 * time.Millisecond)}, options{locker.TTL(200 * time.Millisecond)},
			after(11 * time.Millisecond),
		},
		"Extend has changed the TTL":         {before: extended(time.Minute)},
		"Extend may change the TTL":          {before: extended(0)},
		"something was bound to the lock":    {before: bound},
		"something may be bound to the lock": {before: maybeBound},
		"the lock was lost":                  {before: lost},
		"the lock was lost in the moment":    {before: lostNow},
	} {
		t.Run(name, func(t *testing.T) {
			local(t, tt.first, tt.second, func(
				t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted,
			) {
				if tt.before != nil {
					tt.before(t, s, c, first)
				}
				released := s.count("release")
				_ = first.Unlock(t.Context())
				second := takes(t, "the second", next)
				if second.Token() == first.Token() || second.Fence() <= first.Fence() {
					t.Errorf("the lock was handed over: token %d after %d", second.Fence(), first.Fence())
				}
				if s.count("release") == released {
					t.Error("no release was sent")
				}
			})
		})
	}
}

// If one of the two clocks says that the time of the lease is over, it is.
func TestLockThatHasEndedWhileTheMachineWasSuspendedIsNotHandedOver(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		released, sleep := s.count("release"), locker.SleepMachine(t)
		sleep(time.Hour)
		err := first.Unlock(t.Context())
		sleep(-time.Hour)
		if second := takes(t, "the second", next); second.Token() == first.Token() || s.count("release") == released {
			t.Error("the lock was handed over")
		}
		if err != nil {
			t.Errorf("the store had the lock, and Unlock says: %v", err)
		}
	})
}

func after(d time.Duration) func(*testing.T, *store, *locker.Client, locker.Lease) {
	return func(*testing.T, *store, *locker.Client, locker.Lease) { time.Sleep(d) }
}

// extended extends the lease by ttl. If that is 0, the store does not answer.
func extended(ttl time.Duration) func(*testing.T, *store, *locker.Client, locker.Lease) {
	return func(t *testing.T, s *store, _ *locker.Client, first locker.Lease) {
		if ttl == 0 {
			s.on("extend", hang)
			go func() { _ = first.Extend(t.Context(), locker.TTL(time.Minute)) }()
			synctest.Wait()
			s.on("extend", nil)
			return
		}
		if err := first.Extend(t.Context(), locker.TTL(ttl)); err != nil {
			t.Error(err)
		}
	}
}

func bound(t *testing.T, _ *store, _ *locker.Client, first locker.Lease) {
	if err := locker.Bind(t.Context(), first, 1); err != nil {
		t.Error(err)
	}
}

// maybeBound binds something to the lock, and the store does not answer.
func maybeBound(t *testing.T, s *store, _ *locker.Client, first locker.Lease) {
	s.on("verify", hang)
	go func() { _ = locker.Bind(t.Context(), first, 1) }()
	synctest.Wait()
	s.on("verify", nil)
}

// A lock whose lease was verified is handed over, and so is one whose former lease has tried to bind something to it.
func TestLockThatWasVerifiedIsHandedOver(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		if err := locker.Verify(t.Context(), first); err != nil {
			t.Error(err)
		}
		third := asks(t.Context(), c, "k")
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		second := handed(t, first, next)
		wantErr(t, locker.Bind(t.Context(), first, 1), locker.ErrUnlocked)
		if err := second.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		handed(t, second, third)
	})
}

func lost(t *testing.T, s *store, _ *locker.Client, first locker.Lease) {
	s.steal(t, first, 100*time.Millisecond)
	wantErr(t, first.Extend(t.Context()), locker.ErrLost)
}

// lostNow ends the lease by a message of the store, while the caller already unlocks it.
func lostNow(t *testing.T, s *store, _ *locker.Client, first locker.Lease) {
	s.steal(t, first, 100*time.Millisecond)
	got := make(chan error)
	s.on("extend", func(_ context.Context, next func() error) error { return errors.Join(next(), <-got) })
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = first.Extend(t.Context())
	}()
	synctest.Wait()
	s.on("extend", nil)
	got <- nil
	<-over
}

// The grant goes on when it is handed over: its renewals are for the lease that has the lock.
func TestRenewalsOfALockThatWasHandedOver(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		second := handed(t, first, next)
		until := second.Until()
		time.Sleep(3 * locker.DefaultTTL)
		if err := second.Err(); err != nil || !second.Until().After(until) || s.count("extend") == 0 {
			t.Errorf("after %d extensions: %v, until %v", s.count("extend"), err, second.Until())
		}
		if first.Until().After(until) {
			t.Errorf("the lease that was unlocked has become longer: %v", first.Until())
		}
		s.steal(t, second, time.Minute)
		time.Sleep(locker.DefaultTTL)
		wantErr(t, second.Err(), locker.ErrLost)
		wantErr(t, first.Err(), locker.ErrUnlocked)
	})
}

// Requests of the lease that was unlocked are cancelled. If one of them hears nevertheless that the lock is lost, that
// is true of the next lease, too.
func TestLossThatTheFormerLeaseHearsOf(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		answer := make(chan error)
		cancelled := false
		s.on("extend", func(ctx context.Context, _ func() error) error {
			err := <-answer
			cancelled = ctx.Err() != nil
			return err
		})
		extended := make(chan error, 1)
		go func() { extended <- first.Extend(t.Context()) }()
		synctest.Wait()
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		second := handed(t, first, next)
		answer <- locker.ErrNotHeld
		wantErr(t, <-extended, locker.ErrUnlocked)
		wantErr(t, second.Err(), locker.ErrLost)
		if !cancelled || !isDone(second) {
			t.Errorf("the request was cancelled: %v", cancelled)
		}
	})
}

// lossy tells of losses.
type lossy struct {
	*store
	lost chan func(error)
}

func (s lossy) NotifyLoss(_ backend.Request, lost func(error)) (stop func()) {
	s.lost <- lost
	return func() {}
}

func TestStoreTellsOfTheLossAfterAHandover(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := lossy{newStore(), make(chan func(error), 10)}
		c := locker.NewClient(s)
		before := mustLock(t, c, "k")
		one, two, three := asks(t.Context(), c, "k"), asks(t.Context(), c, "k"), asks(t.Context(), c, "k")
		if err := before.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		first := takes(t, "the first", one)
		<-s.lost
		lost := <-s.lost
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		second := handed(t, first, two)
		s.steal(t, second, 0)
		lost(locker.ErrNotHeld)
		wantErr(t, second.Err(), locker.ErrLost)
		synctest.Wait()
		if len(three) == 0 {
			t.Error("the third still waits for the second, which has lost the lock")
		}
		third := takes(t, "the third", three)
		if third.Fence() <= second.Fence() || third.Err() != nil {
			t.Errorf("the third has the token %d after %d: %v", third.Fence(), second.Fence(), third.Err())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Close ends the lease that has the lock. Callers that wait for it are told.
func TestCloseAfterAHandover(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		third := asks(t.Context(), c, "k")
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		second := handed(t, first, next)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		wantErr(t, second.Err(), locker.ErrLost, locker.ErrClosed)
		if g := <-third; !errors.Is(g.err, locker.ErrClosed) {
			t.Errorf("the third: %v", g.err)
		}
		if err := second.Unlock(t.Context()); errors.Is(err, locker.ErrUnlocked) {
			t.Errorf("the lock was handed over after Close: %v", err)
		}
	})
}

// A caller in another process waits for no more than 50 ms because callers of one Client hand the lock over.
func TestHandoversWithinAProcessLeaveRoomForOthers(t *testing.T) {
	for _, hold := range []time.Duration{2 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
		virtual.Test(t, func(t *testing.T) {
			s := memory.NewBackend()
			c, other := locker.NewClient(s), locker.NewClient(s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			turns := make([]int, 64)
			for i := range turns {
				wg.Go(func() {
					for ctx.Err() == nil {
						_ = locker.Do(ctx, c, "k", func(context.Context) error { time.Sleep(hold); return nil })
						turns[i]++
					}
				})
			}
			alone := 0
			for ctx.Err() == nil {
				asked := time.Now()
				lease, err := other.Lock(ctx, "k")
				if err != nil {
					break
				}
				if waited := time.Since(asked); waited > 50*time.Millisecond+2*hold {
					t.Errorf("waited for %v, and a lock is held for %v", waited, hold)
				}
				alone++
				time.Sleep(hold)
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
			wg.Wait()
			least, most := turns[0], turns[0]
			for _, n := range turns {
				least, most = min(least, n), max(most, n)
			}
			if alone < int(time.Minute/(50*time.Millisecond+3*hold)) || most-least > 1+most/20 {
				t.Errorf("%d turns of another process, and %v here; a lock is held for %v", alone, turns, hold)
			}
			for _, c := range []*locker.Client{c, other} {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// While nobody has a lease, because the caller that was handed the lock has panicked, the next caller gets it.
func TestHookThatPanicsAtAHandover(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = c.Lock(lockertrace.With(t.Context(), &lockertrace.Trace{
				Woken: func(w lockertrace.Wake) { panic(w.Reason) },
			}), "k")
		}()
		synctest.Wait()
		last := asks(t.Context(), c, "k")
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := handed(t, first, next).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if p := <-panicked; p != lockertrace.WakeLocal {
			t.Errorf("panic: %v", p)
		}
		if err := takes(t, "the last", last).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A caller's context ends at the moment at which the lock is handed over to it. The caller then has the lock.
func TestContextEndsAtAHandover(t *testing.T) {
	for range 10 { // it is random which of the two a caller sees first
		local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
			ctx, cancel := context.WithCancel(t.Context())
			both := make(chan struct{})
			leaving := asks(lockertrace.With(ctx, &lockertrace.Trace{
				Waiting: func(lockertrace.Waiting) { <-both },
			}), c, "k")
			last := asks(t.Context(), c, "k")
			if err := first.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := handed(t, first, next).Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			cancel()
			close(both)
			if err := takes(t, "the caller that leaves", leaving).Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := takes(t, "the last", last).Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// After 50 ms the next caller waits at the store, while the first still has the lock.
func TestNextCallerGoesToTheStore(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		asked := func() int { return s.count("queue") + s.count("acquire") }
		before := asked()
		time.Sleep(49 * time.Millisecond)
		if asked() != before {
			t.Error("the next caller asks the store before")
		}
		time.Sleep(2 * time.Millisecond)
		if asked() == before {
			t.Error("the next caller does not ask the store")
		}
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		takes(t, "the next", next)
	})
}

// If the grant came late, its time may be over by the wall clock before the 50 ms are.
func TestLockThatWasGrantedLateIsNotHandedOver(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(s)
		before := mustLock(t, c, "k")
		held := asks(t.Context(), c, "k", locker.NoLocalHandover())
		one, two := asks(t.Context(), c, "k", locker.NoRenewal()), asks(t.Context(), c, "k", locker.NoRenewal())
		if err := before.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		before = takes(t, "the one before", held)
		s.on("acquire", func(_ context.Context, next func() error) error {
			err := next()
			if err == nil {
				time.Sleep(locker.DefaultTTL - 175*time.Millisecond) // some 20 ms are left
			}
			return err
		})
		if err := before.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		first := takes(t, "the first", one)
		s.on("acquire", nil)
		sleep := locker.SleepMachine(t)
		sleep(30 * time.Millisecond)
		err := first.Unlock(t.Context())
		sleep(-30 * time.Millisecond)
		if err != nil {
			t.Error(err)
		}
		if second := takes(t, "the second", two); second.Token() == first.Token() {
			t.Error("the lock was handed over")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A renewal may be under way at a hand-over, if the grant came late. It goes on, for the lease that has the lock then,
// and ends with that.
func TestRenewalUnderWayAtAHandover(t *testing.T) {
	for _, answered := range []bool{true, false} {
		virtual.Test(t, func(t *testing.T) {
			s := newStore()
			c := locker.NewClient(s)
			before := mustLock(t, c, "k")
			held := asks(t.Context(), c, "k", locker.NoLocalHandover())
			one, two := asks(t.Context(), c, "k"), asks(t.Context(), c, "k")
			if err := before.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			before = takes(t, "the one before", held)
			late := locker.DefaultTTL/3 - 20*time.Millisecond
			s.on("acquire", func(_ context.Context, next func() error) error {
				err := next()
				if err == nil {
					time.Sleep(late)
				}
				return err
			})
			if err := before.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			answer, ended := make(chan bool), make(chan bool, 1)
			s.on("extend", func(ctx context.Context, next func() error) error {
				select {
				case <-answer:
					return next()
				case <-ctx.Done():
					ended <- true
					return locker.ErrUnavailable
				}
			})
			first := takes(t, "the first", one)
			time.Sleep(30 * time.Millisecond) // the renewal is under way
			if err := first.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			second := handed(t, first, two)
			if len(ended) > 0 || s.count("extend") != 1 {
				t.Errorf("%d renewals, and the hand-over has ended %d", s.count("extend"), len(ended))
			}
			until := second.Until()
			if answered {
				answer <- true
				synctest.Wait()
				if !second.Until().After(until) {
					t.Error("the renewal has not extended the second lease")
				}
			}
			if err := second.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if len(ended) == 0 != answered {
				t.Error("the renewal must end with the lease")
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The hooks of each caller tell of its own lease only, and that the lock was handed over without the store.
func TestTraceOfAHandoverWithinTheProcess(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		var mu sync.Mutex
		var seen []string
		see := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, what)
		}
		third := asks(lockertrace.With(t.Context(), &lockertrace.Trace{
			Attempted: func(lockertrace.Attempt) { see("attempted") },
			Waiting:   func(lockertrace.Waiting) { see("waiting") },
			Woken:     func(w lockertrace.Wake) { see(string(w.Reason)) },
			Renewed:   func(lockertrace.Renewal) { see("renewed") },
			Lost:      func(error) { see("lost") },
		}), c, "k")
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := handed(t, first, next).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		lease := takes(t, "the third", third)
		time.Sleep(locker.DefaultTTL / 2)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if got := strings.Join(seen, ", "); got != "waiting, local, renewed" {
			t.Errorf("seen: %s", got)
		}
	})
}

// Locks of LockAll are released at the store, and are not handed over to it.
func TestLockAllTakesNoPartInHandovers(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		all := make(chan *locker.AllLease)
		go func() {
			lease, err := locker.LockAll(t.Context(), c, []string{"j", "k"})
			if err != nil {
				t.Error(err)
			}
			all <- lease
		}()
		synctest.Wait()
		last := asks(t.Context(), c, "k")
		if err := first.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		second := handed(t, first, next)
		if err := second.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		lease := <-all
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if l := takes(t, "the last", last); l.Token() == second.Token() {
			t.Error("the lock was handed over beside LockAll")
		}
	})
}
