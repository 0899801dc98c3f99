package once_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/record"
)

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

// A job runs longer than its window while later ticks are claimed.
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

// Others have dropped its tick.
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

// Nobody else is said to have the tick.
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
