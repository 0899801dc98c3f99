package once_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

func inMemory() backend.Backend { return memory.NewBackend() }

func inRecords() backend.Backend { return record.NewBackend(recordstore.New()) }

// Three instances, whose clocks are 200 ms apart, run a thousand ticks. Schedulers are late now and then, and jobs take
// longer than an interval now and then. Beside it, the same instances run the job under a plain lock.
func TestEachTickRunsOnce(t *testing.T) {
	const ticks, interval = 1000, time.Minute
	seed := rand.Uint64()
	onBoth(t, func(w *fleet) {
		var mu sync.Mutex
		outcomes, plain := map[once.Outcome]int{}, map[time.Time]int{}
		var all sync.WaitGroup
		for n := range 3 {
			i, draw := w.instance(time.Duration(n-1)*200*time.Millisecond), rand.New(rand.NewPCG(seed, uint64(n)))
			all.Go(func() {
				for tick := w.tick; tick.Before(w.tick.Add(ticks * interval)); tick = tick.Add(interval) {
					late, takes := time.Duration(draw.IntN(50))*time.Millisecond, time.Duration(draw.IntN(50))*time.Millisecond
					if draw.IntN(20) == 0 {
						late = time.Duration(draw.IntN(int(window / 2)))
					}
					if draw.IntN(20) == 0 {
						takes = time.Duration(draw.IntN(int(2 * interval)))
					}
					all.Go(func() {
						i.until(tick.Add(late))
						outcome, err := i.at(tick, func(context.Context) error { time.Sleep(takes); return nil })
						if err != nil {
							w.Errorf("%v: %s, %v", tick, outcome, err)
						}
						mu.Lock()
						defer mu.Unlock()
						outcomes[outcome]++
					})
					all.Go(func() {
						i.until(tick.Add(late))
						_ = locker.TryDo(w.Context(), i.client, "plain", func(context.Context) error {
							mu.Lock()
							plain[tick]++
							mu.Unlock()
							time.Sleep(takes)
							return nil
						})
					})
					i.until(tick.Add(interval / 2))
				}
			})
		}
		all.Wait()
		for tick := w.tick; tick.Before(w.tick.Add(ticks * interval)); tick = tick.Add(interval) {
			if n := w.times(tick); n != 1 {
				w.Errorf("%v was run %d times", tick, n)
			}
		}
		if outcomes[once.Ran] != ticks || outcomes[once.Elsewhere] != 2*ticks {
			w.Errorf("outcomes %v", outcomes)
		}
		times := map[int]int{} // of how many ticks the job ran so often
		for _, n := range plain {
			times[n]++
		}
		if times[3] < ticks/2 {
			w.Errorf("under a plain lock, %d of %d ticks ran on each instance", times[3], ticks)
		}
		w.Logf("%d ticks: %v; under a plain lock, the job ran so often in so many ticks: %v", ticks, outcomes, times)
		if w.Failed() {
			w.Logf("seed %d", seed)
		}
	})
}

// The same tick has the same lock in all time zones, also if it has been read from a clock. Other ticks have others.
func TestWhichTick(t *testing.T) {
	onBoth(t, func(w *fleet) {
		i := w.instance(0)
		i.until(w.tick)
		w.is(once.Ran)(i.per(nil))
		w.is(once.Elsewhere)(i.at(w.tick.In(time.FixedZone("", 5*3600)), nil))
		w.is(once.Elsewhere)(i.at(w.tick.Round(0), nil))
		w.is(once.Ran)(i.at(w.tick.Add(time.Second), nil))
		w.is(once.Ran)(i.at(w.tick.Add(time.Millisecond), nil))
		outcome, err := once.Do(w.Context(), i.client, key+"@", w.tick, func(context.Context) error { return nil })
		w.is(once.Ran)(outcome, err)
	})
}

// A claim without a function lasts as long as any other. Its errors say why there is none.
func TestClaim(t *testing.T) {
	onBoth(t, func(w *fleet) {
		a, b := w.instance(0), w.instance(0)
		a.until(w.tick)
		lease, err := once.Claim(w.Context(), a.client, key, w.tick)
		if err != nil {
			w.Fatal(err)
		}
		elsewhere := func() {
			w.Helper()
			_, err := once.Claim(w.Context(), b.client, key, w.tick)
			want := `locker: once "report": another call has claimed the tick: held by `
			if !errors.Is(err, once.ErrElsewhere) || !errors.Is(err, locker.ErrHeld) ||
				!strings.HasPrefix(fmt.Sprint(err), want) {
				w.Errorf("%v; want %v", err, once.ErrElsewhere)
			}
			w.is(once.Elsewhere)(b.per(nil))
		}
		elsewhere()
		time.Sleep(10 * time.Second) // renewed until then
		if err := errors.Join(lease.Err(), lease.Unlock(w.Context())); err != nil {
			w.Error(err)
		}
		elsewhere()
		b.until(w.tick.Add(window + time.Millisecond))
		if _, err := once.Claim(w.Context(), b.client, key, w.tick); !errors.Is(err, once.ErrTooLate) {
			w.Errorf("%v; want %v", err, once.ErrTooLate)
		}
		w.want(0)
	})
}

// What cannot be used fails before the store is asked.
func TestInvalid(t *testing.T) {
	onBoth(t, func(w *fleet) {
		never := func(context.Context) error { w.Error("f is called"); return nil }
		for what, try := range map[string]func() (once.Outcome, error){
			"the key is empty": func() (once.Outcome, error) {
				return once.Do(w.Context(), nil, "", time.Now(), never)
			},
			"is not a whole millisecond": func() (once.Outcome, error) {
				return once.Do(w.Context(), nil, key, time.Now().Add(time.Microsecond), never)
			},
			"Window 0s is not positive": func() (once.Outcome, error) {
				return once.Do(w.Context(), nil, key, time.Now(), never, once.Window(0))
			},
			"Skew -1ns is negative": func() (once.Outcome, error) {
				return once.Do(w.Context(), nil, key, time.Now(), never, once.Skew(-1))
			},
			"above the maximum of 24h": func() (once.Outcome, error) {
				return once.Do(w.Context(), w.instance(0).client, key, time.Now(), never, once.Window(24*time.Hour))
			},
		} {
			outcome, err := try()
			if outcome != once.Failed || !errors.Is(err, locker.ErrInvalid) || !strings.Contains(err.Error(), what) {
				w.Errorf("%s, %v; want %q", outcome, err, what)
			}
		}
	})
}

// The errors of f are those of f, whatever they match, and the tick stays claimed.
func TestErrorsOfTheJob(t *testing.T) {
	onBoth(t, func(w *fleet) {
		i := w.instance(0)
		i.until(w.tick)
		for n, want := range []error{
			locker.ErrHeld, locker.ErrUnavailable, once.ErrTooLate, context.DeadlineExceeded, errors.New("disk full"),
		} {
			tick := w.tick.Add(time.Duration(n) * time.Millisecond)
			if outcome, err := i.at(tick, func(context.Context) error { return want }); outcome != once.Ran ||
				!errors.Is(err, want) {
				w.Errorf("%s, %v; want %v", outcome, err, want)
			}
			w.is(once.Elsewhere)(i.at(tick, nil))
		}
		tick := w.tick.Add(time.Second)
		func() {
			defer func() {
				if recover() == nil {
					w.Error("the panic of f is gone")
				}
			}()
			_, _ = i.at(tick, func(context.Context) error { panic("of f") })
		}()
		w.is(once.Elsewhere)(i.at(tick, nil))
	})
}

// The context ends before the call, while it looks at a tick that is claimed, and while f runs.
func TestContextEnds(t *testing.T) {
	onBoth(t, func(w *fleet) {
		i := w.instance(0)
		i.until(w.tick)
		call := func(ctx context.Context, f func(ctx context.Context) error) (once.Outcome, error) {
			return once.Do(ctx, i.client, key, w.tick, f)
		}
		ended, cancel := context.WithCancel(w.Context())
		cancel()
		if outcome, err := call(ended, nil); outcome != once.Failed || !errors.Is(err, context.Canceled) {
			w.Errorf("before: %s, %v", outcome, err)
		}
		ctx, cancel := context.WithCancel(w.Context())
		outcome, err := call(ctx, func(ctx context.Context) error {
			soon, cancelSoon := context.WithTimeout(w.Context(), 100*time.Millisecond)
			defer cancelSoon()
			if outcome, err := call(soon, nil); outcome != once.Failed || !errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("while it is claimed: %s, %v", outcome, err)
			}
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if outcome != once.Ran || !errors.Is(err, context.Canceled) {
			w.Errorf("while f runs: %s, %v", outcome, err)
		}
	})
}

// f learns that its lock is lost. Its tick may then be run again, as after any loss of data.
func TestLoss(t *testing.T) {
	withFleet(t, faulty, func(w *fleet) {
		a, b := w.instance(0), w.instance(0)
		a.until(w.tick)
		outcome, err := a.per(func(ctx context.Context) error {
			if _, ok := locker.LeaseFrom(ctx); !ok {
				w.Error("the context has no lease")
			}
			if err := w.backend.(*lockertest.Store).Lose(ctx, key+"@"+w.tick.UTC().Format(time.RFC3339)); err != nil {
				w.Error(err)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if outcome != once.Ran || !errors.Is(err, locker.ErrLost) {
			w.Errorf("%s, %v", outcome, err)
		}
		w.is(once.Ran)(b.per(nil))
	})
}

// Defaults of the Locker limit the job, and do not shorten the claim.
func TestDefaultsOfTheLocker(t *testing.T) {
	for name, opts := range map[string][]locker.Option{
		"MaxHold":   {locker.MaxHold(time.Second)},
		"NoRenewal": {locker.NoRenewal()},
		"TTL":       {locker.TTL(time.Second), locker.MinHold(0)},
		"MinHold":   {locker.MinHold(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(w *fleet) {
				a, b := w.instance(skew/2), w.instance(-skew/2)
				a.locker = locker.Defaults(opts...)(a.client)
				a.until(w.tick)
				limited := name == "MaxHold" || name == "NoRenewal"
				go func() {
					outcome, err := a.per(func(ctx context.Context) error {
						select {
						case <-ctx.Done():
						case <-time.After(10 * time.Minute):
						}
						return nil
					})
					if outcome != once.Ran || errors.Is(err, locker.ErrLost) != limited {
						w.Errorf("%s, %v", outcome, err)
					}
				}()
				b.until(w.tick.Add(window))
				w.is(once.Elsewhere)(b.per(nil))
				w.want(1)
				time.Sleep(10 * time.Minute)
				lease, err := b.client.TryLock(w.Context(), key+"@"+w.tick.UTC().Format(time.RFC3339))
				if err != nil {
					w.Fatalf("the lock of the tick stays: %v", err)
				}
				_ = lease.Unlock(w.Context())
			})
		})
	}
}

// With a semaphore, as many instances run the tick as there are permits, with an exclusive lock one, and with a shared
// lock all.
func TestOtherLockers(t *testing.T) {
	for name, tt := range map[string]struct {
		wrap func(c *locker.Client) locker.Locker
		want int
	}{
		"semaphore": {func(c *locker.Client) locker.Locker { return semaphore.New(c, 2) }, 2},
		"exclusive": {func(c *locker.Client) locker.Locker { return rwlock.New(c).Exclusive() }, 1},
		"shared":    {func(c *locker.Client) locker.Locker { return rwlock.New(c).Shared() }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(w *fleet) {
				var all sync.WaitGroup
				for n := range 4 {
					i := w.instance(time.Duration(n) * time.Second)
					i.locker = tt.wrap(i.client)
					all.Go(func() {
						i.until(w.tick)
						if outcome, err := i.per(nil); err != nil || outcome != once.Ran && outcome != once.Elsewhere {
							w.Errorf("%s, %v", outcome, err)
						}
					})
				}
				all.Wait()
				w.want(tt.want)
			})
		})
	}
}
