package once_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/once"
)

func faulty() backend.Backend { return lockertest.NewStore() }

// forever is a job that ends with the test.
func (i *instance) forever(context.Context) error {
	<-i.Context().Done()
	return nil
}

// The tick is claimed by the instance with the fastest clock. The one with the slowest clock asks as late as it may,
// and finds it claimed, whatever has become of the first.
func TestTheClaimOutlastsTheSkew(t *testing.T) {
	type claimed struct {
		*instance
		store *lockertest.Store
	}
	for name, run := range map[string]func(a claimed){
		"the job is quick": func(a claimed) { a.is(once.Ran)(a.per(nil)) },
		"the job goes on": func(a claimed) {
			go a.per(a.forever)
		},
		"the process dies": func(a claimed) { // the lease is not renewed any more, and not released
			go a.per(a.forever)
			time.Sleep(time.Second)
			_ = a.client.Close()
		},
		"the release is not answered": func(a claimed) {
			a.is(once.Ran)(a.per(func(context.Context) error { a.store.Down(); return nil }))
			time.Sleep(10 * time.Second)
			a.store.Up()
		},
		"the store is down for most of the time": func(a claimed) {
			go a.per(a.forever)
			time.Sleep(time.Second)
			a.store.Down()
			time.Sleep(50 * time.Second)
			a.store.Up()
		},
	} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, faulty, func(w *fleet) {
				a, b := w.instance(skew/2), w.instance(-skew/2)
				a.until(w.tick)
				run(claimed{a, w.backend.(*lockertest.Store)})
				b.until(w.tick.Add(window))
				w.is(once.Elsewhere)(b.per(nil))
				w.want(1)
				b.until(w.tick.Add(window + 2*time.Second))
				if outcome, err := b.per(nil); outcome != once.TooLate || !errors.Is(err, once.ErrTooLate) {
					w.Errorf("%s, %v; want %s", outcome, err, once.TooLate)
				}
				w.want(1)
			})
		})
	}
}

// Clocks that are further apart than the skew are what the promise does not cover: the tick is run twice.
func TestClocksFurtherApartThanTheSkew(t *testing.T) {
	withFleet(t, inMemory, func(w *fleet) {
		a, b := w.instance(skew), w.instance(-skew)
		a.until(w.tick)
		w.is(once.Ran)(a.per(nil))
		b.until(w.tick.Add(window))
		w.is(once.Ran)(b.per(nil))
		w.want(2)
	})
}

// A tick that is ahead is refused, unless clocks may differ by as much. It is then claimed for as long as any other.
func TestTickInTheFuture(t *testing.T) {
	onBoth(t, func(w *fleet) {
		a, b := w.instance(0), w.instance(0)
		for _, ahead := range []time.Duration{20 * time.Minute, skew + time.Second} {
			a.until(w.tick.Add(-ahead))
			if outcome, err := a.per(nil); outcome != once.Failed || !errors.Is(err, locker.ErrInvalid) {
				w.Errorf("%v before the tick: %s, %v", ahead, outcome, err)
			}
			w.want(0)
		}
		a.until(w.tick.Add(-skew))
		w.is(once.Ran)(a.per(nil))
		b.until(w.tick.Add(window))
		w.is(once.Elsewhere)(b.per(nil))
		w.want(1)
	})
}

// A tick whose window is over is refused without the store.
func TestTooLateAsksNobody(t *testing.T) {
	withFleet(t, inMemory, func(w *fleet) {
		i := w.instance(0)
		i.locker = nil
		i.until(w.tick.Add(window + time.Millisecond))
		outcome, err := i.per(nil)
		want := `locker: once "report": too late for the tick: `
		if outcome != once.TooLate || !strings.HasPrefix(fmt.Sprint(err), want) {
			w.Errorf("%s, %v", outcome, err)
		}
		w.want(0)
	})
}

// stopping is a Locker of a process that stands still before it sends its request.
type stopping struct {
	locker.Locker
	still   time.Duration
	stood   bool // it has stood still
	granted bool
}

func (s *stopping) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	time.Sleep(s.still)
	s.stood = true
	lease, err := s.Locker.TryLock(ctx, key, opts...)
	s.granted = err == nil
	return lease, err
}

// A process stands still after it has looked at its clock, until the lock of the tick is free again. It is granted the
// lock, and does not run the tick. Nor does it if its wall clock was set back meanwhile, or if its monotonic clock has
// not gone on, because the machine was suspended.
func TestProcessStandsStillBeforeItsRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		still   time.Duration
		setWall time.Duration // by how much the wall clock is wrong then
		before  int           // how often the tick was run before
	}{
		"both clocks go on":           {time.Hour, 0, 1},
		"the clock is set back":       {time.Hour, -time.Hour, 1},
		"only the wall clock goes on": {0, time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, inMemory, func(w *fleet) {
				a, b := w.instance(0), w.instance(0)
				a.until(w.tick)
				if tt.before > 0 {
					w.is(once.Ran)(a.per(nil))
				}
				b.until(w.tick.Add(window / 2))
				s := &stopping{Locker: b.client, still: tt.still}
				b.locker = s
				outcome, err := b.per(nil, once.Clock(func() time.Time {
					if s.stood {
						return time.Now().Add(tt.setWall)
					}
					return time.Now()
				}))
				if outcome != once.TooLate || !errors.Is(err, once.ErrTooLate) || !s.granted {
					w.Errorf("%s, %v; granted: %v", outcome, err, s.granted)
				}
				w.want(tt.before)
			})
		})
	}
}

// claims runs the tick of the test under a lease of Claim, and says what Do would.
func (i *instance) claims() (once.Outcome, error) {
	lease, err := once.Claim(i.Context(), i.locker, key, i.tick, once.Window(window), once.Skew(skew),
		once.Clock(func() time.Time { return time.Now().Add(i.ahead) }))
	switch {
	case errors.Is(err, once.ErrElsewhere):
		return once.Elsewhere, err
	case errors.Is(err, once.ErrTooLate):
		return once.TooLate, err
	case err != nil:
		return once.Failed, err
	}
	i.runs(i.tick)
	return once.Ran, lease.Unlock(i.Context())
}

// While the store is down, nothing runs. The tick is run once when it is back, if that is within the window. Nobody has
// to call again for that.
func TestStoreIsDown(t *testing.T) {
	per := func(i *instance) (once.Outcome, error) { return i.per(nil) }
	for _, tt := range []struct {
		down time.Duration
		name string
		call func(i *instance) (once.Outcome, error)
	}{
		{5 * time.Second, "Do", per}, {2 * window, "Do", per},
		{5 * time.Second, "Claim", (*instance).claims}, {2 * window, "Claim", (*instance).claims},
	} {
		down := tt.down
		t.Run(tt.name+" "+down.String(), func(t *testing.T) {
			withFleet(t, faulty, func(w *fleet) {
				var mu sync.Mutex
				outcomes := map[once.Outcome]int{}
				var all sync.WaitGroup
				for n := range 3 {
					i := w.instance(time.Duration(n) * 200 * time.Millisecond)
					all.Go(func() {
						i.until(w.tick)
						outcome, err := tt.call(i)
						if down > window && !errors.Is(err, locker.ErrUnavailable) {
							w.Errorf("%s, %v", outcome, err)
						}
						mu.Lock()
						defer mu.Unlock()
						outcomes[outcome]++
					})
				}
				time.Sleep(time.Until(w.tick.Add(-time.Second)))
				w.backend.(*lockertest.Store).Down()
				time.Sleep(down)
				w.want(0)
				w.backend.(*lockertest.Store).Up()
				all.Wait()
				want := map[once.Outcome]int{once.Ran: 1, once.Elsewhere: 2}
				if down > window {
					want = map[once.Outcome]int{once.TooLate: 3}
				}
				if !maps.Equal(outcomes, want) {
					w.Errorf("%v, want %v", outcomes, want)
				}
			})
		})
	}
}

// unanswered is a store that has executed the first attempt, and whose answer is lost. The attempt is undone later.
type unanswered struct {
	backend.Backend
	undo  time.Duration
	first sync.Once
}

func (u *unanswered) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := u.Backend.Acquire(ctx, req)
	u.first.Do(func() {
		time.AfterFunc(u.undo, func() { _ = u.Backend.Release(context.Background(), req) })
		g, err = backend.Grant{}, fmt.Errorf("%w: %w", locker.ErrUnavailable, io.EOF)
	})
	return g, err
}

// The answer to a claim is lost, so that the job does not run there. Another instance runs the tick when the attempt is
// undone. If that takes longer than a second, it believes that the tick is claimed, and a later call runs it.
func TestAnswerIsLost(t *testing.T) {
	for _, tt := range []struct {
		undo time.Duration
		next once.Outcome
	}{{0, once.Ran}, {300 * time.Millisecond, once.Ran}, {3 * time.Second, once.Elsewhere}} {
		t.Run(tt.undo.String(), func(t *testing.T) {
			backend := func() backend.Backend { return &unanswered{Backend: memory.NewBackend(), undo: tt.undo} }
			withFleet(t, backend, func(w *fleet) {
				a, b := w.instance(0), w.instance(0)
				a.until(w.tick)
				ctx, cancel := context.WithTimeout(w.Context(), time.Millisecond)
				defer cancel()
				_, err := once.Claim(ctx, a.client, key, w.tick, once.Window(window), once.Skew(skew))
				if !errors.Is(err, locker.ErrUnavailable) {
					w.Error(err)
				}
				w.want(0)
				time.Sleep(time.Millisecond)
				w.is(tt.next)(b.per(nil))
				time.Sleep(3 * time.Second)
				outcome, err := a.per(nil)
				if err != nil || (outcome == once.Ran) == (tt.next == once.Ran) {
					w.Errorf("%s, %v", outcome, err)
				}
				w.want(1)
			})
		})
	}
}

// The answer to a claim is lost, and Do asks again. If the attempt is undone by then, it runs the tick. Otherwise it
// finds the tick claimed, by itself or by another call, and does not say that all is well.
func TestDoFindsItsOwnClaim(t *testing.T) {
	for _, undo := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, time.Hour} {
		t.Run(undo.String(), func(t *testing.T) {
			backend := func() backend.Backend { return &unanswered{Backend: memory.NewBackend(), undo: undo} }
			withFleet(t, backend, func(w *fleet) {
				i := w.instance(0)
				i.until(w.tick)
				outcome, err := i.per(nil)
				if undo < time.Hour {
					w.is(once.Ran)(outcome, err)
					w.want(1)
					return
				}
				if outcome != once.Elsewhere || !errors.Is(err, once.ErrElsewhere) || !errors.Is(err, locker.ErrHeld) ||
					!errors.Is(err, locker.ErrUnavailable) || strings.Contains(err.Error(), key+"@") {
					w.Errorf("%s, %v", outcome, err)
				}
				w.want(0)
			})
		})
	}
}

// A call ends with its context while the store is down.
func TestContextEndsWhileTheStoreIsDown(t *testing.T) {
	withFleet(t, faulty, func(w *fleet) {
		i := w.instance(0)
		i.until(w.tick)
		w.backend.(*lockertest.Store).Down()
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		start, told := time.Now(), 0
		_, err := once.Claim(ctx, i.client, key, w.tick, once.Unavailable(func(err error) {
			if told++; !errors.Is(err, locker.ErrUnavailable) || time.Since(start) > time.Second {
				w.Error(err)
			}
		}))
		if told != 1 {
			w.Errorf("the program was told %d times", told)
		}
		if took := time.Since(start); !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, ctx.Err()) ||
			took < 9*time.Second || took > 11*time.Second {
			w.Errorf("%v after %v", err, took)
		}
	})
}

// The wall clock is set back while the store is down. The window ends as if it had not been.
func TestClockIsSetBackWhileTheStoreIsDown(t *testing.T) {
	withFleet(t, faulty, func(w *fleet) {
		i := w.instance(0)
		i.until(w.tick)
		w.backend.(*lockertest.Store).Down()
		time.AfterFunc(window+10*time.Second, w.backend.(*lockertest.Store).Up)
		back := w.tick.Add(window / 2)
		outcome, err := i.per(nil, once.Clock(func() time.Time {
			if now := time.Now(); now.Before(back) {
				return now
			}
			return time.Now().Add(-window / 2)
		}))
		if outcome != once.TooLate || !errors.Is(err, locker.ErrUnavailable) {
			w.Errorf("%s, %v", outcome, err)
		}
		w.want(0)
	})
}

// Errors name the key of the caller, and not the lock of the tick.
func TestErrorsNameTheKeyOfTheCaller(t *testing.T) {
	withFleet(t, faulty, func(w *fleet) {
		i := w.instance(0)
		i.until(w.tick)
		names := func(err error) {
			w.Helper()
			var of *locker.Error
			if !errors.As(err, &of) || of.Key != key || strings.Contains(err.Error(), key+"@") {
				w.Errorf("%v", err)
			}
		}
		lease, err := once.Claim(w.Context(), i.client, key, w.tick)
		if err != nil {
			w.Fatal(err)
		}
		if err := lease.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
		names(lease.Extend(w.Context()))
		names(locker.Verify(w.Context(), lease))
		names(locker.Bind(w.Context(), lease, nil))
		names(lease.Unlock(w.Context()))
		_, err = once.Claim(w.Context(), i.client, key, w.tick, once.Window(24*time.Hour))
		names(err)
		w.backend.(*lockertest.Store).Down()
		_, err = once.Claim(w.Context(), i.client, key, w.tick.Add(time.Second))
		names(err)
		if !errors.Is(err, once.ErrTooLate) || !errors.Is(err, locker.ErrUnavailable) {
			w.Error(err)
		}
	})
}
