package once_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/record"
)

// Package record has the other tests of ticks in one record.

// Whatever happens to requests, and whatever clocks show within the skew, no tick is run twice. Ticks overlap,
// instances are late, and some of them are processes that look once.
func TestTicksInOneRecordUnderFaults(t *testing.T) {
	const instances, ticks = 5, 40
	seeds := uint64(60)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := recordstore.New()
			inStore := func() backend.Backend { return record.NewBackend(s, record.Timeout(time.Second)) }
			withFleet(t, inStore, func(w *fleet) {
				w.Cleanup(s.Wait)
				at := func(n int) time.Time { // ten of them are in one record at a time
					return w.tick.Add(time.Duration(n/10)*time.Minute + time.Duration(n%10)*time.Millisecond)
				}
				rng := rand.New(rand.NewPCG(seed, 1))
				s.Latency = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
				s.Inject(recordstore.Faults(rand.New(rand.NewPCG(seed, 3))))
				for range instances {
					rng, ahead := rand.New(rand.NewPCG(rng.Uint64(), 2)), time.Duration(rng.Int64N(int64(skew)))
					long := w.instance(ahead)
					for n := range ticks {
						i, tick := long, at(n)
						late := time.Duration(rng.Int64N(int64(10 * time.Second)))
						if rng.IntN(4) == 0 {
							late = time.Duration(rng.Int64N(int64(window + 2*skew)))
						}
						patience := time.Duration(rng.Int64N(int64(20 * time.Second)))
						if rng.IntN(3) == 0 {
							c := locker.NewClient(inStore())
							w.Cleanup(func() { _ = c.Close() })
							i = &instance{w, c, c, ahead}
						}
						go func() {
							i.until(tick.Add(late))
							ctx, cancel := context.WithTimeout(w.Context(), patience)
							defer cancel()
							_, _ = once.Do(ctx, i.locker, key, tick, func(context.Context) error { w.runs(tick); return nil },
								once.Window(window), once.Skew(skew), once.Clock(func() time.Time { return time.Now().Add(i.ahead) }))
						}()
					}
				}
				time.Sleep(time.Until(at(ticks).Add(2 * window)))
				ran := 0
				for n := range ticks {
					times := w.times(at(n))
					if ran += times; times > 1 {
						t.Errorf("the tick %d was run %d times", n, times)
					}
				}
				if ran < ticks/2 {
					t.Errorf("%d of %d ticks were run", ran, ticks)
				}
			})
		})
	}
}

// Whoever has a clock that is an hour ahead runs a tick that nobody else would, and the last ticks stay claimed.
func TestWrongClockDropsNoTick(t *testing.T) {
	withFleet(t, inRecords, func(w *fleet) {
		i, wrong := w.instance(0), w.instance(time.Hour)
		i.until(w.tick)
		for n := range 6 {
			w.is(once.Ran)(i.at(w.tick.Add(time.Duration(n)*time.Millisecond), nil))
		}
		w.is(once.Ran)(wrong.at(w.tick.Add(time.Hour), nil))
		for n := range 6 {
			w.is(once.Elsewhere)(i.at(w.tick.Add(time.Duration(n)*time.Millisecond), nil))
		}
	})
}

// The tick is claimed by the instance with the fastest clock, and others have their ticks since. The record has room,
// and the one with the slowest clock, which asks as late as it may, does not run the tick again.
func TestTickStaysForTheSlowestClock(t *testing.T) {
	withFleet(t, inRecords, func(w *fleet) {
		a, b := w.instance(skew), w.instance(0)
		a.until(w.tick)
		w.is(once.Ran)(a.per(nil))
		for n := range 30 {
			w.is(once.Ran)(a.at(w.tick.Add(time.Duration(n+1)*time.Millisecond), nil))
		}
		b.until(w.tick.Add(window))
		w.is(once.Ran)(a.at(w.tick.Add(window), nil))
		w.is(once.Elsewhere)(b.per(nil))
		w.want(1)
	})
}

// One instance of two has a clock that is an hour ahead, once or all the time. The other one has its ticks.
func TestWrongClockStopsNobody(t *testing.T) {
	for name, always := range map[string]bool{"once": false, "always": true} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(w *fleet) {
				a, wrong := w.instance(0), w.instance(time.Hour)
				failed := 0
				for n := range 120 {
					tick := w.tick.Add(time.Duration(n) * time.Minute)
					a.until(tick)
					if n == 0 || always {
						go func() { _, _ = wrong.at(tick.Add(time.Hour), nil) }()
						time.Sleep(time.Second)
					}
					ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
					got, err := once.Do(ctx, a.locker, key, tick, func(context.Context) error { return nil })
					cancel()
					if got != once.Ran && n < 60 {
						if failed++; failed == 1 {
							w.Errorf("tick %d: %s, %v", n, got, err)
						}
					}
				}
				if failed > 0 {
					w.Errorf("%d of 60 ticks were run by nobody", failed)
				}
			})
		})
	}
}

// A job takes longer than the window while later ticks are claimed, by a clock that is ahead, too.
func TestLongJobKeepsItsLease(t *testing.T) {
	onBoth(t, func(w *fleet) {
		a, b := w.instance(0), w.instance(skew)
		a.until(w.tick)
		lease, err := once.Claim(w.Context(), a.locker, key, w.tick)
		if err != nil {
			w.Fatal(err)
		}
		for n := range 12 { // in the same record
			w.is(once.Ran)(b.at(w.tick.Add(time.Duration(n+1)*time.Millisecond), nil))
		}
		b.until(w.tick.Add(window + skew + time.Second))
		w.is(once.Ran)(b.at(w.tick.Add(window), nil))
		time.Sleep(time.Until(w.tick.Add(63 * time.Second)))
		if err := lease.Extend(w.Context()); err != nil {
			w.Errorf("within the skew: %v", err)
		}
	})
}

// A job takes so long that others have dropped its tick: nobody else can claim it, so the lease is not lost.
func TestLongJobVerifies(t *testing.T) {
	onBoth(t, func(w *fleet) {
		a := w.instance(0)
		a.until(w.tick)
		lease, err := once.Claim(w.Context(), a.locker, key, w.tick)
		if err != nil {
			w.Fatal(err)
		}
		for n := range 12 {
			a.until(w.tick.Add(time.Duration(n+1) * time.Minute))
			w.is(once.Ran)(a.at(w.tick.Add(time.Duration(n+1)*time.Minute), nil))
		}
		if err := locker.Verify(w.Context(), lease); err != nil {
			w.Errorf("verify: %v", err)
		}
		if err := lease.Err(); err != nil {
			w.Errorf("lease: %v", err)
		}
	})
}

// An operator has released the last tick, whose label the record had. Nobody is said to have another tick by it.
func TestLabelOfAClaimThatIsUndone(t *testing.T) {
	withFleet(t, inRecords, func(w *fleet) {
		s := recordstore.New()
		a, b := record.NewBackend(s), record.NewBackend(s)
		la := locker.Wrap(locker.NewClient(a), locker.Defaults(locker.Label("a")))
		lb := locker.Wrap(locker.NewClient(b), locker.Defaults(locker.Label("b")))
		defer func() { _ = a.Close(); _ = b.Close() }()
		time.Sleep(time.Until(w.tick))
		_, err := once.Claim(w.Context(), la, key, w.tick.Add(time.Millisecond))
		if err != nil {
			w.Fatal(err)
		}
		lease, err := once.Claim(w.Context(), lb, key, w.tick)
		if err != nil {
			w.Fatal(err)
		}
		_, _ = b.ForceRelease(w.Context(), lease.Key(), "")
		_, err = once.Claim(w.Context(), lb, key, w.tick.Add(time.Millisecond))
		var held *locker.HeldError
		if !errors.As(err, &held) || held.Label == "b" {
			w.Errorf("%v", err)
		}
	})
}

// A repeat of Acquire with the same token, a deleted record, and a release: the record is none that anybody can read.
func TestReleaseOfADeletedRecord(t *testing.T) {
	withFleet(t, inRecords, func(w *fleet) {
		s := recordstore.New()
		b := record.NewBackend(s)
		defer func() { _ = b.Close() }()
		var req backend.Request
		l := locker.NewClient(&again{b, &req})
		time.Sleep(time.Until(w.tick))
		_, err := once.Claim(w.Context(), l, key, w.tick)
		if err != nil {
			w.Fatal(err)
		}
		s.Delete("report=t")
		_ = b.Release(w.Context(), req)
		_, err = once.Claim(w.Context(), locker.NewClient(record.NewBackend(s)), key, w.tick.Add(time.Millisecond))
		if err != nil {
			w.Error(err, s.Text("report=t"))
		}
	})
}

// again acquires everything twice, with the same token, and notes the request.
type again struct {
	*record.Backend
	req *backend.Request
}

func (g *again) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	_, err := g.Backend.Acquire(ctx, req)
	if err != nil {
		return backend.Grant{}, err
	}
	grant, err := g.Backend.Acquire(ctx, req)
	req.Private = grant.Private
	*g.req = req
	return grant, err
}

// An operator releases the tick while the job runs, and another instance runs it: both learn of that, or could.
func TestDoTellsOfTheOperator(t *testing.T) {
	onBoth(t, func(w *fleet) {
		a, b := w.instance(0), w.instance(0)
		a.until(w.tick)
		got, err := a.per(func(context.Context) error {
			if _, err := b.client.ForceRelease(w.Context(), lockOf(w.tick), ""); err != nil {
				w.Error(err)
			}
			w.is(once.Ran)(b.per(nil))
			return nil
		})
		if got != once.Ran || !errors.Is(err, locker.ErrLost) {
			w.Errorf("%s, %v, and the tick was run %d times", got, err, w.times(w.tick))
		}
		w.want(2)
	})
}

// lockOf is the name of the lock of a tick.
func lockOf(tick time.Time) string { return key + "@" + tick.UTC().Format("2006-01-02T15:04:05.999Z") }

// detached is middleware that gives each call a context of its own.
type detached struct{ locker.Locker }

func (d detached) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	own, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return d.Locker.Lock(own, key, opts...)
}

func (d detached) TryLock(_ context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return d.Locker.TryLock(context.Background(), key, opts...)
}

// Where the context says what a call is about, a call that comes without it is refused, and its tick is not run twice.
func TestMiddlewareWithAContextOfItsOwn(t *testing.T) {
	onBoth(t, func(w *fleet) {
		a, b := w.instance(0), w.instance(0)
		a.locker = detached{a.client}
		a.until(w.tick)
		if got, err := a.per(nil); got != once.Ran && !errors.Is(err, locker.ErrInvalid) {
			w.Errorf("%s, %v", got, err)
		}
		_, _ = b.per(nil)
		w.want(1)
	})
}

// renamed is middleware that puts something before each key.
type renamed struct {
	locker.Locker
	before string
}

func (r renamed) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.Locker.Lock(ctx, r.before+key, opts...)
}

func (r renamed) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.Locker.TryLock(ctx, r.before+key, opts...)
}

// A program whose middleware changes keys has the same ticks as one that uses these keys.
func TestMiddlewareThatChangesKeys(t *testing.T) {
	onBoth(t, func(w *fleet) {
		a, b := w.instance(0), w.instance(0)
		a.until(w.tick)
		job := func(context.Context) error { w.runs(w.tick); return nil }
		w.is(once.Ran)(once.Do(w.Context(), renamed{a.client, key[:2]}, key[2:], w.tick, job))
		w.is(once.Elsewhere)(once.Do(w.Context(), b.client, key, w.tick, job))
		w.want(1)
	})
}
