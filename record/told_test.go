package record_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

// The clocks of a service: its answers tell whole seconds.
const (
	resolution = time.Second
	skew       = 5 * time.Second
)

// slack is how much later than a watcher those who look once take the lock of a holder that has crashed, at most. The
// skew is in it twice if machines that are further and further ahead have answered.
const slack = 3*resolution + 2*skew

// service is a store as a client of a service sees it, whose machines tell their time with each answer.
type service struct {
	*recordstore.Store
	ahead func() time.Duration // by how much the clock of the machine is ahead that answers now
	mute  func() bool          // whether an answer tells no time
}

// ServerClock implements record.ServerClock.
func (service) ServerClock() (time.Duration, time.Duration) { return resolution, skew }

// tell tells the time of now or, as often, of when the request was sent: the answer tells it at any moment in between.
func (s service) tell(ctx context.Context, sent time.Time) {
	at := sent
	if rand.IntN(2) == 0 {
		at = time.Now()
	}
	if s.mute == nil || !s.mute() {
		record.Tell(ctx, at.Add(s.ahead()).Truncate(resolution))
	}
}

func (s service) Get(ctx context.Context, name string) ([]byte, string, error) {
	defer s.tell(ctx, time.Now())
	return s.Store.Get(ctx, name)
}

func (s service) Create(ctx context.Context, name string, text []byte) (string, error) {
	defer s.tell(ctx, time.Now())
	return s.Store.Create(ctx, name, text)
}

func (s service) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	defer s.tell(ctx, time.Now())
	return s.Store.Replace(ctx, name, version, text)
}

// apart returns what the clocks of several machines are ahead by, any of which answers. They differ by most.
func apart(most time.Duration) func() time.Duration {
	return func() time.Duration {
		if rand.IntN(3) == 0 {
			return time.Duration(rand.IntN(2)) * most
		}
		return rand.N(most + 1)
	}
}

// Processes that look once take the lock of a holder that has crashed when its time and what the clocks may differ by
// are over, and none of them before. Those that watch do not wait for longer than on other stores.
func TestServerClock(t *testing.T) {
	for name, most := range map[string]time.Duration{"one clock": 0, "clocks that differ": skew} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				s.Latency = 3 * time.Millisecond
				ahead := apart(most)
				process := func() *record.Backend { return backendOf(t, service{s, ahead, nil}) }
				holder, watcher := process(), process()
				crashed := acquire(t, holder, ttl)
				for range 5 {
					time.Sleep(ttl / 2)
					if err := holder.Extend(t.Context(), crashed); err != nil {
						t.Fatal(err)
					}
				}
				end := time.Now()
				wantHeld(t, watcher, "the first look of a watcher")
				for time.Since(end) < record.Patience(ttl)-10*time.Millisecond {
					time.Sleep(50 * time.Millisecond)
					wantHeld(t, process(), time.Since(end).String())
				}
				time.Sleep(20 * time.Millisecond)
				next := acquire(t, watcher, ttl)
				end = time.Now()
				for range int((ttl + slack) / (100 * time.Millisecond)) {
					time.Sleep(100 * time.Millisecond)
					if got, err := try(t, process(), ttl); err == nil {
						next = got
						break
					}
				}
				if next.Fence <= crashed.Fence || time.Since(end) > record.Patience(ttl)+slack {
					t.Errorf("token %d after %d, %v after the watcher has crashed", next.Fence, crashed.Fence, time.Since(end))
				}
				if _, err := try(t, process(), ttl); !errors.Is(err, locker.ErrHeld) {
					t.Errorf("beside the next holder: %v", err)
				}
			})
		})
	}
}

// What a process believes of the store's time may be wrong by any amount, because its machine was suspended since it
// was told, or because the store's clock was set. It relies on no lock that others take already.
func TestServerClockOfWhoWasSuspended(t *testing.T) {
	for _, wrong := range []time.Duration{time.Hour, 2 * time.Second, -time.Hour} {
		for _, mute := range []bool{false, true} {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				now, silent := time.Duration(0), false
				store := service{s, func() time.Duration { return now }, func() bool { return silent }}
				holder := backendOf(t, store)
				release(t, holder, acquire(t, holder, ttl))
				now += wrong
				silent = mute
				before := s.Requests()["replace"]
				const long = 20 * time.Second
				req := acquire(t, holder, long)
				if n := s.Requests()["replace"] - before; n > 3 {
					t.Errorf("%v: it wrote %d times", wrong, n)
				}
				if mute && strings.Contains(s.Text("k"), "clock") {
					t.Errorf("the store has told no time, and the record is %s", s.Text("k"))
				}
				silent = false
				for range 5 {
					time.Sleep(long - time.Second)
					wantHeld(t, backendOf(t, store), fmt.Sprint("wrong by ", wrong))
					if err := holder.Extend(t.Context(), req); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

func release(t *testing.T, b *record.Backend, req backend.Request) {
	t.Helper()
	if err := b.Release(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

// While an extension by less has no answer, the lock lasts for as long as it was promised. What others watch stays
// without an end.
func TestServerClockOfAnExtensionWithoutAnAnswer(t *testing.T) {
	for _, watched := range []bool{false, true} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			now, silent := time.Duration(0), watched
			store := service{s, func() time.Duration { return now }, func() bool { return silent }}
			holder := backendOf(t, store)
			req := acquire(t, holder, time.Minute)
			if watched { // and the holder learns the time of a machine that is far behind
				silent, now = false, -time.Hour
				_, _ = holder.Acquire(t.Context(), request(ttl))
				now = 0
			}
			s.LoseReply()
			req.TTL = time.Second
			if err := holder.Extend(t.Context(), req); !errors.Is(err, locker.ErrUnavailable) {
				t.Fatal(err)
			}
			time.Sleep(59 * time.Second)
			wantHeld(t, backendOf(t, store), "before the end of what was promised")
		})
	}
}

// Whatever happens to requests, and whichever machine answers, a lock has one holder at a time, and those who look once
// get it.
func TestOneHolderByServerClocks(t *testing.T) {
	eachSeed(t, func(t *testing.T, s *recordstore.Store, rng *rand.Rand) {
		ahead := apart(skew)
		mute := func() bool { return rand.IntN(8) == 0 }
		open := func() *locker.Client {
			return client(t, service{s, ahead, mute}, record.Timeout(time.Second), record.Poll(200*time.Millisecond))
		}
		n := runOf(t, rng, 4, open, func(rng *rand.Rand, long *locker.Client, j *judge) {
			l := long
			if rng.IntN(2) == 0 {
				l = open() // a process that looks once
			}
			ttl := 100*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second)))
			before := j.asked()
			lease, err := l.TryLock(t.Context(), "k", locker.TTL(ttl), locker.NoRenewal())
			if err != nil {
				return
			}
			j.granted(lease, before)
			for range rng.IntN(3) {
				time.Sleep(time.Duration(rng.Int64N(int64(ttl / 2))))
				_ = lease.Extend(t.Context(), locker.TTL(ttl/4+time.Duration(rng.Int64N(int64(ttl)))))
			}
			if rng.IntN(2) == 0 {
				_ = lease.Unlock(t.Context())
			} else {
				<-lease.Done() // it has crashed
			}
		})
		if n < 3 {
			t.Errorf("%d locks were acquired in a minute", n)
		}
	})
}

// If the clocks of the machines differ by more than was said, a lock has two holders.
func TestServerClocksThatDifferByMore(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		behind := func() time.Duration { return 0 }
		ahead := func() time.Duration { return skew + 20*time.Second }
		acquire(t, backendOf(t, service{s, behind, nil}), 10*time.Second)
		acquire(t, backendOf(t, service{s, ahead, nil}), ttl)
		wantHeld(t, backendOf(t, service{s, ahead, nil}, record.ClockSkew(-1)), "a process that does not use the times")
	})
}

// A nightly job with MinHold, each night a new process, runs each night, and its lock is kept for MinHold.
func TestNightlyMinHoldByServerClocks(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		ahead := apart(skew)
		tonight := func() (locker.Lease, error) {
			l := client(t, service{s, ahead, nil})
			return l.TryLock(t.Context(), "k", locker.TTL(30*time.Second), locker.MinHold(time.Hour))
		}
		for night := range 30 {
			lease, err := tonight()
			if err != nil {
				t.Fatalf("night %d: %v", night, err)
			}
			time.Sleep(5 * time.Second)
			if err := lease.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour - 10*time.Second)
			if _, err := tonight(); !errors.Is(err, locker.ErrHeld) {
				t.Fatalf("night %d, within MinHold: %v", night, err)
			}
			time.Sleep(23 * time.Hour)
		}
	})
}

// A process that looks once knows when the lock becomes free if it is not renewed.
func TestServerClockIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		store := service{s, func() time.Duration { return 0 }, nil}
		acquire(t, backendOf(t, store), time.Minute)
		time.Sleep(40 * time.Second)
		_, err := try(t, backendOf(t, store), ttl)
		var held *locker.HeldError
		if !errors.As(err, &held) || held.Seen != 0 || held.Remaining < 20*time.Second ||
			held.Remaining > 20*time.Second+time.Second+slack {
			t.Errorf("got %#v", err)
		}
		i, err := backendOf(t, store).Inspect(t.Context(), "k")
		if err != nil || i.State != inspect.Held || i.Seen != 0 || i.Remaining < held.Remaining-time.Second {
			t.Errorf("got %+v, %v", i, err)
		}
		_, err = try(t, backendOf(t, s), ttl)
		if !errors.As(err, &held) || held.Seen == 0 {
			t.Errorf("without a clock: %#v", err)
		}
	})
}
