package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/retry"
)

func TestFaultsAreRetriedUntilTheyPass(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		for what, lock := range map[string]func(context.Context, string, ...locker.Option) (locker.Lease,
			error){"Lock": l.Lock, "TryLock": l.TryLock} {
			s.on(failing(5))
			lease, err := lock(t.Context(), what)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if err := lease.Extend(t.Context()); err != nil {
				t.Errorf("Extend: %v", err)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
			for _, op := range []string{"acquire", "extend", "release"} {
				if n := s.count(op); n != 6 {
					t.Errorf("%s: %d calls of %s, want 6", what, n, op)
				}
			}
		}
	})
}

// Every attempt has a new owner token. Undoing a failed attempt must not release the lock of the next one.
func TestEveryAttemptHasAFreshToken(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		s.on(failing(5))
		lease := mustLock(t, l, "k")
		slices.Sort(s.tokens)
		if n := len(slices.Compact(s.tokens)); n != 6 || !slices.Contains(s.tokens, lease.Token()) {
			t.Errorf("%d different tokens of 6 attempts", n)
		}
		mustUnlock(t, lease)
	})
}

// An error that is not a fault is returned unchanged, after one try.
func TestOnlyFaultsAreRetried(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		once := func(op string, err error, want ...error) {
			t.Helper()
			wantErr(t, err, want...)
			if n := s.count(op); n > 1 {
				t.Errorf("%d calls of %s", n, op)
			}
		}
		try := func(opts ...locker.Option) error { _, err := l.TryLock(t.Context(), "k", opts...); return err }
		wait := func() error { _, err := l.Lock(t.Context(), "k"); return err }
		for _, e := range []error{locker.ErrInvalid, locker.ErrForeignKey, locker.ErrClosed} {
			s.on(func(string, int, func() error) error { return e })
			once("acquire", try(), e)
			s.on(func(string, int, func() error) error { return e })
			once("acquire", wait(), e)
			s.on(func(string, int, func() error) error { return errors.Join(errDown, e) })
			once("acquire", wait(), e, locker.ErrUnavailable)
		}
		s.on(nil)
		once("acquire", try(locker.TTL(1)), locker.ErrInvalid)

		lease := mustLock(t, l, "k", locker.NoRenewal())
		s.on(nil)
		once("acquire", try(), locker.ErrHeld)
		time.Sleep(locker.DefaultTTL)
		s.on(nil)
		once("extend", lease.Extend(t.Context()), locker.ErrLost)
		once("release", lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
		once("release", lease.Unlock(t.Context()), locker.ErrUnlocked)

		// A pause during an outage ends when the Client begins to drain.
		s.on(func(string, int, func() error) error { return errDown })
		client, _ := locker.As[*locker.Client](l)
		ended, end := context.WithCancel(t.Context())
		end()
		start := time.Now()
		time.AfterFunc(2*time.Millisecond, func() { client.Drain(ended) })
		wantErr(t, wait(), locker.ErrClosed)
		if took := time.Since(start); took > 2*time.Millisecond {
			t.Errorf("Lock returned %v after Drain", took)
		}
		s.on(nil)
		once("acquire", wait(), locker.ErrClosed, locker.ErrDraining)
		once("acquire", try(), locker.ErrClosed, locker.ErrDraining)

		c, _ := locker.As[io.Closer](l)
		_ = c.Close()
		s.on(nil)
		once("acquire", wait(), locker.ErrClosed)
		once("acquire", try(), locker.ErrClosed)
	})
}

// Lock itself waits for locks that are held. The middleware calls it once.
func TestWaitingIsNotRetrying(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
		holder := mustLock(t, l, "k", locker.Label("web-7"))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err := l.Lock(ctx, "k")
		wantErr(t, err, locker.ErrHeld, context.DeadlineExceeded)
		want := `locker: lock "k": timed out after 1m0s: held by web-7 for 10 s unless renewed`
		if text := fmt.Sprint(err); text != want && len(text) > 110 {
			t.Errorf("the error was changed: %s", text)
		}
		mustUnlock(t, holder)
	})
}

// Neither the outage nor the context ends.
func TestRetriesEndAtTheLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []retry.Option
		want time.Duration
	}{
		"by default":   {nil, retry.DefaultFor},
		"when told to": {with(retry.For(5 * time.Second)), 5 * time.Second},
		"at nonsense":  {with(retry.For(-1), retry.Backoff(0, -1), retry.PerSecond(-1)), retry.DefaultFor},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tt.opts, func(t *testing.T, s *store, l locker.Locker) {
				s.on(down)
				start := time.Now()
				_, err := l.Lock(context.Background(), "k")
				wantErr(t, err, locker.ErrUnavailable)
				if !errors.Is(err, errDown) {
					t.Errorf("the last cause is not in %v", err)
				}
				wantText(t, err, fmt.Sprintf(`locker: lock "k": after %d tries in `, s.count("acquire")))
				// The last pause, which would have ended too late, is at most two seconds.
				if took := time.Since(start); took > tt.want || took < tt.want-retry.DefaultMaxDelay {
					t.Errorf("gave up after %v", took)
				}
			})
		})
	}
}

// The time limit and the pauses start again when the store has answered in between.
func TestTimeSpentWaitingDoesNotCount(t *testing.T) {
	bubble(t, with(retry.For(10*time.Second)), func(t *testing.T, s *store, l locker.Locker) {
		holder := mustLock(t, l, "k", locker.TTL(time.Hour))
		outage := time.Now().Add(time.Minute)
		var pauses []time.Time
		s.on(func(op string, n int, next func() error) error {
			switch now := time.Now(); {
			case op != "acquire" || now.Sub(outage).Abs() >= 4*time.Second && n > 4:
				return next()
			case now.After(outage.Add(-10 * time.Second)):
				pauses = append(pauses, now)
			case n > 4:
				return next()
			}
			return errDown
		})
		time.AfterFunc(2*time.Minute, func() { mustUnlock(t, holder) })
		lease, err := l.Lock(t.Context(), "k", locker.Patience(0))
		if err != nil {
			t.Fatalf("faults at the beginning and after a minute of waiting: %v", err)
		}
		if len(pauses) < 2 || pauses[1].Sub(pauses[0]) > retry.DefaultBaseDelay {
			t.Errorf("the pauses go on where they were: %v", pauses)
		}
		mustUnlock(t, lease)
	})
}

func TestPausesGrowAndSpread(t *testing.T) {
	const base, most, callers = 100 * time.Millisecond, time.Second, 1000
	virtual.Test(t, func(t *testing.T) {
		m := retry.New(retry.Backoff(base, most), retry.PerSecond(1_000_000))
		var mu sync.Mutex
		sums := make([]time.Duration, 8)
		firsts := map[time.Duration]bool{}
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				s := newStore()
				s.on(failing(len(sums)))
				c := locker.NewClient(s)
				defer c.Close()
				lease := mustLock(t, m(c), fmt.Sprint(i))
				mustUnlock(t, lease)
				mu.Lock()
				defer mu.Unlock()
				for n := range sums {
					pause := s.calls["acquire"][n+1].Sub(s.calls["acquire"][n])
					sums[n] += pause
					if top := min(base<<n, most); pause > top || pause < time.Millisecond {
						t.Errorf("pause %d took %v, the most is %v", n, pause, top)
					}
					if n == 0 {
						firsts[pause] = true
					}
				}
			})
		}
		wg.Wait()
		for n, sum := range sums {
			// The mean of 1000 pauses is half of the longest, with a standard deviation of 1.8 %. The test allows seven
			// standard deviations.
			want := min(base<<n, most) / 2
			if mean := sum / callers; mean < want*87/100 || mean > want*113/100 {
				t.Errorf("pause %d is %v on average, want about %v", n, mean, want)
			}
		}
		if len(firsts) < callers*9/10 {
			t.Errorf("%d callers drew %d different first pauses", callers, len(firsts))
		}
	})
}

// A failed attempt that took effect blocks the next one until it is undone.
func TestTryLockIsNotBlockedByItsFailedAttempt(t *testing.T) {
	for undone, want := range map[time.Duration]error{time.Second: nil, time.Hour: locker.ErrHeld} {
		t.Run(undone.String(), func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, s *store, l locker.Locker) {
				s.on(func(op string, n int, next func() error) error {
					if n > 1 || op != "acquire" {
						return next()
					}
					_ = next()
					token := s.tokens[0]
					time.AfterFunc(undone, func() {
						_ = s.Backend.Release(context.Background(), backend.Request{Key: "k", Token: token})
					})
					return errDown
				})
				start := time.Now()
				lease, err := l.TryLock(t.Context(), "k", locker.TTL(time.Hour))
				switch {
				case want == nil && err == nil:
					mustUnlock(t, lease)
				case want == nil:
					t.Errorf("after a fault: %v", err)
				default:
					wantErr(t, err, want)
					var held *locker.HeldError
					if !errors.As(err, &held) || held.Remaining < 50*time.Minute {
						t.Errorf("%v does not say for how long", err)
					}
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestOnHeld(t *testing.T) {
	bubble(t, with(retry.OnHeld(), retry.For(10*time.Second)), func(t *testing.T, s *store, l locker.Locker) {
		holder := mustLock(t, l, "k")
		start := time.Now()
		s.on(nil)
		_, err := l.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrHeld)
		if !errors.As(err, new(*locker.HeldError)) {
			t.Errorf("no *HeldError in %v", err)
		}
		if took := time.Since(start); took > 10*time.Second || took < 8*time.Second || s.count("acquire") < 5 {
			t.Errorf("%d tries in %v", s.count("acquire"), took)
		}
		time.AfterFunc(3*time.Second, func() { mustUnlock(t, holder) })
		next, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, next)
	})
}

func TestSuccessCostsOneAllocation(t *testing.T) {
	c := memory.New()
	defer c.Close()
	cycle := func(l locker.Locker) float64 {
		return testing.AllocsPerRun(200, func() {
			lease, _ := l.TryLock(t.Context(), "k")
			_ = lease.Unlock(t.Context())
		})
	}
	if plain, retried := cycle(c), cycle(locker.Wrap(c, retry.New())); retried > plain+1 {
		t.Errorf("%v allocations, %v without retry", retried, plain)
	}
}

// breaker is a middleware that fails at once, whatever the Client below it does.
type breaker struct {
	locker.Locker
	calls int
}

func (b *breaker) Unwrap() locker.Locker { return b.Locker }

func (b *breaker) Lock(context.Context, string, ...locker.Option) (locker.Lease, error) {
	b.calls++
	return nil, errDown
}

// Once the Client drains, no pause is left, so a call that goes on failing is tried once more at most.
func TestDrainEndsRetriesOfAnotherFault(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := memory.New()
		defer c.Close()
		b := &breaker{Locker: c}
		c.Drain(t.Context())
		start := time.Now()
		_, err := locker.Wrap(b, retry.New()).Lock(t.Context(), "k")
		if !errors.Is(err, errDown) || b.calls > 2 || time.Since(start) > 0 {
			t.Errorf("%d calls in %v: %v", b.calls, time.Since(start), err)
		}
	})
}
