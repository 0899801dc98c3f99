package locker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/lockertrace"
)

// block makes the next acquisition of key by c one of several tokens: it holds the lock elsewhere while two callers
// wait. The first of them has the lock in the end, and the other one waits for it.
func block(t *testing.T, c *locker.Client, s *store, first, second context.Context) (locker.Lease, <-chan granted) {
	t.Helper()
	s.on("acquire", func(_ context.Context, next func() error) error {
		time.Sleep(time.Millisecond)
		return next()
	})
	a := make(chan granted, 1)
	go func() {
		lease, err := c.Lock(first, "k", locker.TTL(ttl))
		a <- granted{lease, err}
	}()
	synctest.Wait()
	// a has asked already without others; let it have the lock, and begin again with two that wait.
	g := <-a
	if g.err != nil {
		t.Fatal(g.err)
	}
	s.on("acquire", nil)
	b := asks(first, c, "k", locker.TTL(ttl))
	d := asks(second, c, "k", locker.TTL(ttl))
	if err := g.lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	g = <-b
	if g.err != nil {
		t.Fatal(g.err)
	}
	synctest.Wait()
	return g.lease, d
}

type detached struct {
	locker.Locker
	lock func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error)
}

func (d detached) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return d.lock(ctx, key, opts...)
}
func (d detached) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return d.lock(ctx, key, opts...)
}

// LockAll releases what it was given by an Unlock that does not ask for earlier ones. A lease that middleware has
// unlocked before, and whose lock was handed over, has nothing to release.
func TestUndoOfALeaseThatWasHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l1, waiting := block(t, c, s, t.Context(), t.Context())
		var l2 locker.Lease
		d := detached{c, func(_ context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
			if key == "k" {
				return l1, nil
			}
			if err := l1.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			g := <-waiting
			l2 = g.lease
			return nil, errors.New("no")
		}}
		_, err := locker.TryLockAll(t.Context(), d, []string{"k", "z"})
		t.Log(err)
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		if l2.Token() != l1.Token() {
			t.Fatal("no local")
		}
		if l3, err := c.TryLock(t.Context(), "k"); err == nil {
			t.Errorf("two leases: %v %v, %v", l2.Err(), l3.Err(), l3.Fence())
		}
		_ = l2.Unlock(t.Context())
	})
}

// Nobody waits when a caller gets the lock with several tokens. A caller that comes then learns who has it.
func TestErrorWhileALockIsHandedOver(t *testing.T) {
	for _, fails := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			other := locker.NewClient(s.Backend)
			held := mustLock(t, other, "k", locker.TTL(ttl), locker.Label("other"))
			ctx, cancel := context.WithCancel(t.Context())
			var failing atomic.Bool
			s.on("acquire", func(_ context.Context, next func() error) error {
				if failing.Load() {
					return locker.ErrUnavailable
				}
				err := next()
				if err == nil {
					cancel()
					time.Sleep(time.Millisecond)
				}
				return err
			})
			a := asks(t.Context(), c, "k", locker.TTL(ttl), locker.Label("ours"))
			b := asks(ctx, c, "k", locker.TTL(ttl), locker.Label("ours"))
			time.Sleep(time.Second)
			failing.Store(fails)
			time.Sleep(time.Second)
			_ = held.Unlock(t.Context())
			failing.Store(false)
			<-b
			l := (<-a).lease
			short, end := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer end()
			start := time.Now()
			_, err := c.Lock(short, "k", locker.TTL(ttl), locker.Label("ours"))
			t.Log(time.Since(start), err)
			var h *locker.HeldError
			if !errors.As(err, &h) || h.Label != "ours" || errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("fails %v: %v", fails, err)
			}
			_ = l.Unlock(t.Context())
			_ = other.Close()
		})
	}
}

// The 50 ms count from the answer of the store, whatever hooks do meanwhile.
func TestHandoversEnd50msAfterTheGrant(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		first := mustLock(t, c, "k", locker.TTL(ttl))
		var granted time.Time
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Attempted: func(a lockertrace.Attempt) {
			if a.Err == nil {
				granted = time.Now()
				time.Sleep(200 * time.Millisecond)
			}
		}})
		a := asks(ctx, c, "k", locker.TTL(ttl))
		b := asks(t.Context(), c, "k", locker.TTL(ttl))
		_ = first.Unlock(t.Context())
		l := (<-a).lease
		time.Sleep(time.Millisecond)
		_ = l.Unlock(t.Context())
		l2 := (<-b).lease
		if l2.Token() == l.Token() {
			t.Errorf("handed over %v after the grant", time.Since(granted))
		}
		_ = l2.Unlock(t.Context())
	})
}

// They are over while the machine is suspended, too.
func TestHandoversEndOnASuspendedMachine(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l, b := block(t, c, s, t.Context(), t.Context())
		locker.SleepMachine(t)(time.Second)
		_ = l.Unlock(t.Context())
		l2 := (<-b).lease
		if l2.Token() == l.Token() {
			t.Errorf("handed over after a second")
		}
		_ = l2.Unlock(t.Context())
	})
}

// noTokens grants locks without tokens, and says that there are many.
type noTokens struct{ backend.Backend }

func (n noTokens) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := n.Backend.Acquire(ctx, req)
	g.Fence = 0
	return g, err
}

// Without tokens, there is none for another lease.
func TestHandoverWithoutTokens(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.Backend = noTokens{s.Backend}
		l, b := block(t, c, s, t.Context(), t.Context())
		_ = l.Unlock(t.Context())
		l2 := (<-b).lease
		if l2.Fence() != 0 {
			t.Errorf("token %d of a store that issues none", l2.Fence())
		}
		_ = l2.Unlock(t.Context())
	})
}

// generous grants more tokens than it was asked for.
type generous struct{ backend.Backend }

func (n generous) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := n.Backend.Acquire(ctx, req)
	g.Fences = backend.MaxFences
	return g, err
}

// A caller with NoLocalHandover hands nothing over, whatever the store has granted.
func TestHandoverOfMoreTokensThanWereAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.Backend = generous{s.Backend}
		first := mustLock(t, c, "k", locker.TTL(ttl))
		a := asks(t.Context(), c, "k", locker.TTL(ttl), locker.NoLocalHandover())
		b := asks(t.Context(), c, "k", locker.TTL(ttl))
		_ = first.Unlock(t.Context())
		l := (<-a).lease
		_ = l.Unlock(t.Context())
		l2 := (<-b).lease
		if l2.Token() == l.Token() {
			t.Error("the lock was handed over")
		}
		_ = l2.Unlock(t.Context())
	})
}

// If the last renewal has failed, the next caller asks the store: it would not hear that its lease is in doubt.
func TestLockInDoubtIsNotHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		before := mustLock(t, c, "k")
		one := asks(t.Context(), c, "k")
		call := new(several.Call) // Close waits for what it has
		two := asks(call.With(t.Context()), c, "k")
		s.on("acquire", func(_ context.Context, next func() error) error {
			err := next()
			if err == nil { // so late that a renewal is due within the time for hand-overs
				time.Sleep(locker.DefaultTTL/3 - 10*time.Millisecond)
			}
			return err
		})
		s.on("extend", func(context.Context, func() error) error { return locker.ErrUnavailable })
		mustUnlock(t, before)
		first := takes(t, "the first", one)
		s.on("acquire", nil)
		time.Sleep(15 * time.Millisecond)
		if s.count("extend") == 0 {
			t.Fatal("no renewal has failed")
		}
		mustUnlock(t, first)
		if second := takes(t, "the second", two); second.Token() == first.Token() {
			t.Error("the lock was handed over")
		}
		call.End()
		start := time.Now()
		_ = c.Close()
		if took := time.Since(start); took > 0 {
			t.Errorf("Close took %v", took)
		}
	})
}

// What TryLock has acquired is released at the store, although a caller waits for it.
func TestLockOfTryLockIsNotHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		first, err := c.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		next := asks(t.Context(), c, "k")
		mustUnlock(t, first)
		if second := takes(t, "the second", next); second.Token() == first.Token() || s.count("release") != 1 {
			t.Errorf("the lock was handed over, %d releases", s.count("release"))
		}
	})
}

// A lock may be lost without its holder's hearing of it. When it unlocks, the next grant is none of its business.
func TestUnlockOfALostLockDoesNotHandItOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		former, two := block(t, c, s, t.Context(), t.Context())
		three := asks(t.Context(), c, "k", locker.TTL(ttl))
		time.Sleep(60 * time.Millisecond) // the second caller asks the store
		s.steal(t, former, 0)
		second := takes(t, "the second", two)
		if second.Token() == former.Token() {
			t.Fatal("the lock was handed over")
		}
		_ = former.Unlock(t.Context())
		synctest.Wait()
		if len(three) > 0 {
			t.Fatalf("the third has a lock that was lost: %v beside %v", (<-three).lease.Fence(), second.Fence())
		}
		mustUnlock(t, second)
		mustUnlock(t, takes(t, "the third", three))
	})
}

// What a call for several locks has handed over is not its own any more, so that Close does not wait for it.
func TestCloseSparesWhatWasHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		call := new(several.Call)
		defer call.End()
		before := mustLock(t, c, "k")
		one, two := asks(call.With(t.Context()), c, "k"), asks(t.Context(), c, "k")
		mustUnlock(t, before)
		first := takes(t, "the first", one)
		mustUnlock(t, first)
		mustUnlock(t, handed(t, first, two))
		start := time.Now()
		_ = c.Close()
		if took := time.Since(start); took > 0 {
			t.Errorf("Close took %v", took)
		}
	})
}

// Leases end one after the other in Close. A lock that is unlocked meanwhile is released, and not handed over to a
// caller whose lease would be over, too.
func TestLockIsNotHandedOverOnceCloseHasBegun(t *testing.T) {
	for _, closes := range []bool{true, false} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			third := mustLock(t, c, "third", locker.TTL(time.Minute))
			soonest := mustLock(t, c, "another", locker.TTL(time.Second)) // Close ends it first
			first, next := block(t, c, s, t.Context(), t.Context())
			closed := make(chan error, 1)
			if closes {
				resume := locker.Stall(soonest)
				go func() { closed <- c.Close() }()
				for !c.Closing() { // the caller that waits may be told first, which shows nothing
				}
				defer func() {
					resume()
					<-closed
				}()
			}
			if err := first.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
			seen, g := third.Err(), <-next
			if !closes {
				if g.err != nil || g.lease.Token() != first.Token() {
					t.Errorf("the lock was not handed over: %v", g.err)
				}
				return
			}
			wantErr(t, seen, locker.ErrLost, locker.ErrClosed)
			wantErr(t, g.err, locker.ErrClosed)
			if g, err := s.Backend.Acquire(t.Context(), backend.Request{Key: "k", Token: "other", TTL: ttl}); err != nil {
				t.Errorf("the lock was unlocked, and stays taken: %v %v", g, err)
			}
		})
	}
}

// The store is not asked at a hand-over, so a lock may have been lost before it. The lease that has it when hand-overs
// have ended learns of that at once, and not with the next renewal.
func TestLossBeforeAHandoverIsNoticedSoon(t *testing.T) {
	for name, tt := range map[string]struct{ lost, handed, waits bool }{
		"lost":                      {lost: true, handed: true},
		"lost, and somebody waits":  {lost: true, handed: true, waits: true},
		"held":                      {handed: true},
		"lost, and not handed over": {lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
				if tt.lost {
					s.steal(t, first, time.Minute)
				}
				lease := first
				if tt.handed {
					if err := first.Unlock(t.Context()); err != nil {
						t.Errorf("the store is not asked at a hand-over, and says %v", err)
					}
					lease = handed(t, first, next)
				}
				if tt.waits { // callers of other terms end the hand-overs
					asks(t.Context(), c, "k", locker.NoLocalHandover())
				}
				time.Sleep(51 * time.Millisecond)
				want, questions := error(nil), 0
				if tt.handed {
					questions = 1
				}
				if tt.lost && tt.handed {
					want = locker.ErrLost
				}
				if err := lease.Err(); !errors.Is(err, want) || s.count("verify") != questions {
					t.Errorf("%d questions, and the lease: %v", s.count("verify"), err)
				}
				if tt.handed && !tt.lost {
					mustUnlock(t, lease)
				}
			})
		})
	}
}

// A caller that gets the lock within the 50 ms may hold it for long. Somebody in another process who came before waits
// for that hold, and for no other one.
func TestOthersWaitFor50msAndOneHold(t *testing.T) {
	const long = 10 * time.Minute
	wait := func(opts ...locker.Option) (waited time.Duration) {
		bubble(t, func(t *testing.T, s *store, _ *locker.Client) {
			c, other := locker.NewClient(s.Backend), locker.NewClient(s.Backend)
			before := mustLock(t, other, "k")
			first, their := asks(t.Context(), c, "k", opts...), asks(t.Context(), other, "k", opts...)
			time.Sleep(time.Second)
			later := []<-chan granted{asks(t.Context(), c, "k", opts...), asks(t.Context(), c, "k", opts...)}
			for _, got := range append(later, first) {
				go func() {
					lease := (<-got).lease
					hold := long
					if got == first {
						hold = time.Millisecond
					}
					time.Sleep(hold)
					mustUnlock(t, lease)
				}()
			}
			start := time.Now()
			mustUnlock(t, before)
			g := <-their
			waited = time.Since(start)
			mustUnlock(t, g.lease)
			time.Sleep(2 * long)
			_, _ = c.Close(), other.Close()
		})
		return waited
	}
	if with, without := wait(), wait(locker.NoLocalHandover()); without != time.Millisecond ||
		with <= long || with > without+50*time.Millisecond+long {
		t.Errorf("waited for %v, and for %v with NoLocalHandover", with, without)
	}
}
