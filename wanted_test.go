package locker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// wants checks whether the lease is wanted.
func wants(t *testing.T, what string, lease locker.Lease, want bool) {
	t.Helper()
	synctest.Wait()
	wantsNow(t, what, locker.Wanted(lease), want)
}

func wantsNow(t *testing.T, what string, wanted <-chan struct{}, want bool) {
	t.Helper()
	synctest.Wait()
	select {
	case <-wanted:
		if !want {
			t.Errorf("%s: the lease is wanted", what)
		}
	default:
		if want {
			t.Errorf("%s: the lease is not wanted", what)
		}
	}
}

// telling is a store that tells its holders that others wait, and counts what it is asked for.
type telling struct {
	queuing
	begun, stopped atomic.Int64
	wanted         func() // what the last NotifyWanted was given
}

func (s *telling) NotifyWanted(req backend.Request, wanted func()) (stop func()) {
	s.begun.Add(1)
	s.wanted = wanted
	end := s.Backend.(backend.WantedNotifier).NotifyWanted(req, wanted)
	return func() {
		s.stopped.Add(1)
		end()
	}
}

// answering is a store that tells in its answers to Extend whether others wait.
type answering struct {
	queuing
	asked *atomic.Int64 // how many requests have asked
}

func (s answering) Extend(ctx context.Context, req backend.Request) error {
	if req.Wanted != nil {
		s.asked.Add(1)
		i, err := s.Backend.(inspect.Inspector).Inspect(ctx, req.Key)
		if err == nil && i.Waiting > 0 {
			req.Wanted()
		}
	}
	return s.queuing.Extend(ctx, req)
}

func (answering) Capabilities() backend.Capabilities {
	return backend.Capabilities{AnswersWanted: true}
}

func TestCallersOfTheSameClientWantALock(t *testing.T) {
	for _, name := range []string{"polled", "queue", "told"} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newStore()
				var b backend.Backend = s
				switch name {
				case "queue":
					b = queuing{s}
				case "told":
					b = &telling{queuing: queuing{s}}
				}
				c := locker.NewClient(b)
				defer c.Close()
				lease := mustLock(t, c, "k")
				wanted := locker.Wanted(lease)
				_, err := c.TryLock(t.Context(), "k")
				wantErr(t, err, locker.ErrHeld)
				other := mustLock(t, c, "other")
				wantsNow(t, "nobody waits", wanted, false)
				ctx, leave := context.WithCancel(t.Context())
				first := asks(ctx, c, "k")
				wantsNow(t, "one waits", wanted, true)
				wants(t, "one waits for another lock", other, false)
				second := asks(t.Context(), c, "k")
				leave()
				<-first
				_ = lease.Unlock(t.Context())
				next := takes(t, "the second", second)
				wants(t, "the others have left", next, false)
				third := asks(t.Context(), c, "k")
				wants(t, "another one waits", next, true)
				_ = next.Unlock(t.Context())
				last := takes(t, "the third", third)
				wants(t, "nobody waits any more", last, false)
				_ = last.Unlock(t.Context())
				_ = other.Unlock(t.Context())
			})
		})
	}
}

func TestLeaseIsWantedByThoseThatWaitAlready(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		lease := mustLock(t, c, "k")
		ctx, leave := context.WithCancel(t.Context())
		got := asks(ctx, c, "k")
		select {
		case <-locker.Wanted(lease):
		default:
			t.Error("not wanted at once")
		}
		leave()
		<-got
		wants(t, "that has left", lease, true) // the channel stays closed
		_ = lease.Unlock(t.Context())
	})
}

// Each caller of a hand-over within the process has a channel of its own.
func TestWantedAtAHandover(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		wanted := locker.Wanted(first)
		wantsNow(t, "the first", wanted, true)
		releases := s.count("release")
		_ = first.Unlock(t.Context())
		second := handed(t, first, next)
		if s.count("release") != releases {
			t.Fatal("not handed over")
		}
		wants(t, "the second", second, false)
		ctx, leave := context.WithCancel(t.Context())
		third := asks(ctx, c, "k")
		wants(t, "the second", second, true)
		leave()
		<-third
		_ = second.Unlock(t.Context())
	})
}

func TestOtherClientsWantALock(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := memory.NewBackend()
		c, other := locker.NewClient(s), locker.NewClient(s)
		lease := mustLock(t, c, "k")
		ctx, leave := context.WithCancel(t.Context())
		gone := asks(ctx, other, "k")
		leave()
		<-gone
		wanted := locker.Wanted(lease)
		_, err := other.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrHeld)
		wantsNow(t, "nobody waits", wanted, false)
		third := locker.NewClient(s)
		one, two := asks(t.Context(), other, "k"), asks(t.Context(), third, "k")
		wantsNow(t, "two wait", wanted, true)
		_ = lease.Unlock(t.Context())
		next := takes(t, "the first", one)
		wants(t, "one waits", next, true)
		_ = next.Unlock(t.Context())
		last := takes(t, "the second", two)
		wants(t, "nobody waits", last, false)
		_ = last.Unlock(t.Context())
		_, _, _ = c.Close(), other.Close(), third.Close()
	})
}

// A lease that has ended is not wanted any more, and the store is not asked about it.
func TestLeaseThatHasEndedIsNotWanted(t *testing.T) {
	for what, end := range map[string]func(t *testing.T, s *telling, c *locker.Client, l locker.Lease){
		"unlocked": func(t *testing.T, _ *telling, _ *locker.Client, l locker.Lease) { _ = l.Unlock(t.Context()) },
		"lost": func(t *testing.T, s *telling, _ *locker.Client, l locker.Lease) {
			s.steal(t, l, time.Minute)
			wantErr(t, l.Extend(t.Context()), locker.ErrLost)
		},
		"closed": func(_ *testing.T, _ *telling, c *locker.Client, _ locker.Lease) { _ = c.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := &telling{queuing: queuing{newStore()}}
				c := locker.NewClient(s)
				before := mustLock(t, c, "never asked")
				lease := mustLock(t, c, "k")
				wanted := locker.Wanted(lease)
				if wanted != locker.Wanted(lease) || s.begun.Load() != 1 {
					t.Errorf("%d notifications of one lease", s.begun.Load())
				}
				end(t, s, c, lease)
				if n := s.stopped.Load(); n != 1 {
					t.Errorf("the notification was stopped %d times", n)
				}
				other := locker.NewClient(s.Backend)
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				asks(ctx, other, "k")
				asks(ctx, other, "k")
				<-asks(ctx, c, "k")
				s.wanted() // comes late
				wantsNow(t, "ended", wanted, false)
				wants(t, "ended", lease, false)
				_ = before.Unlock(t.Context())
				wants(t, "ended before it was asked", before, false)
				if s.begun.Load() != 1 {
					t.Error("the store was asked about a lease that has ended")
				}
				_, _ = c.Close(), other.Close()
			})
		})
	}
}

// keeping is a store that keeps what an Extend was given to call.
type keeping struct {
	*memory.Backend
	wanted func()
}

func (k *keeping) Extend(ctx context.Context, req backend.Request) error {
	k.wanted = req.Wanted
	return k.Backend.Extend(ctx, req)
}

// An answer that comes when the lock was handed over is about the lease that has asked.
func TestAnswerAfterAHandoverIsAboutTheFormerLease(t *testing.T) {
	local(t, nil, nil, func(t *testing.T, s *store, c *locker.Client, first locker.Lease, next <-chan granted) {
		k := &keeping{Backend: s.Backend.(*memory.Backend)}
		s.Backend = k
		_ = first.Unlock(t.Context())
		second := handed(t, first, next)
		wants(t, "the second", second, false)
		if err := second.Extend(t.Context()); err != nil || k.wanted == nil {
			t.Fatalf("Extend has not asked: %v", err)
		}
		got := asks(t.Context(), c, "k")
		_ = second.Unlock(t.Context())
		last := takes(t, "the third", got)
		wants(t, "the third", last, false)
		k.wanted()
		wants(t, "the third", last, false)
		_ = last.Unlock(t.Context())
	})
}

func TestAnswersToRenewalsTellThatALeaseIsWanted(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := answering{queuing{newStore()}, new(atomic.Int64)}
		c, other := locker.NewClient(s), locker.NewClient(queuing{s.store})
		lease := mustLock(t, c, "k", locker.TTL(ttl))
		time.Sleep(ttl)
		if s.asked.Load() > 0 {
			t.Error("asked although nobody wants to know")
		}
		still := mustLock(t, c, "still", locker.TTL(ttl), locker.NoRenewal())
		wants(t, "nobody waits", still, false)
		wants(t, "nobody waits", lease, false)
		time.Sleep(ttl / 2)
		wants(t, "nobody waits", lease, false)
		got, gotStill := asks(t.Context(), other, "k"), asks(t.Context(), other, "still")
		time.Sleep(ttl/3 + time.Millisecond)
		wants(t, "after a renewal", lease, true)
		wants(t, "without a renewal", still, false)
		if err := still.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		wants(t, "after Extend", still, true)
		before := s.asked.Load()
		time.Sleep(ttl)
		if s.asked.Load() > before {
			t.Error("asked although it is known")
		}
		_ = lease.Unlock(t.Context())
		_ = takes(t, "the other", got).Unlock(t.Context())
		_ = takes(t, "the other", gotStill).Unlock(t.Context())
		_, _ = c.Close(), other.Close()
	})
}

func TestWantedIsFoundBehindMiddleware(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
			lease, _ := locker.LeaseFrom(ctx)
			if locker.Wanted(struct{ locker.Lease }{lease}) != nil {
				t.Error("found behind a lease that hides it")
			}
			lease = wrapping{wrapping{lease}}
			wants(t, "nobody waits", lease, false)
			asks(t.Context(), c, "k")
			wants(t, "one waits", lease, true)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if locker.Wanted(nil) != nil {
			t.Error("no lease is wanted")
		}
	})
}

func TestAllLeaseIsWantedIfOneOfItsLocksIs(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		for i := range 3 {
			lease := mustLockAll(t, c, []string{"k0", "k1", "k2"})
			wanted := locker.Wanted(lease)
			wantsNow(t, "nobody waits", wanted, false)
			got := asks(t.Context(), c, fmt.Sprint("k", i))
			wantsNow(t, "one waits", wanted, true)
			_ = lease.Unlock(t.Context())
			_ = takes(t, "the other", got).Unlock(t.Context())
		}
		lease := mustLockAll(t, c, []string{"k0", "k1", "k2"})
		wanted := locker.Wanted(lease)
		s.steal(t, one{key: "k1", token: s.tokens[len(s.tokens)-2]}, 0)
		wantErr(t, lease.Extend(t.Context()), locker.ErrLost)
		got := asks(t.Context(), c, "k2")
		wantsNow(t, "lost", wanted, false)
		wants(t, "lost", lease, false)
		_ = lease.Unlock(t.Context())
		_ = takes(t, "the other", got).Unlock(t.Context())
		wants(t, "ended before it was asked", mustLockAll(t, c, []string{"k0"}), false)
	})
}
