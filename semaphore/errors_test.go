package semaphore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/semaphore"
)

// The text of an error says how many permits there are, and whether others wait for them.
func TestErrorsSayHowManyPermitsThereAre(t *testing.T) {
	stores(t, func(w *world) {
		says := func(err error, want string) {
			w.Helper()
			var of *locker.Error
			if !errors.Is(err, locker.ErrHeld) || !errors.As(err, new(*locker.HeldError)) || !errors.As(err, &of) ||
				!strings.Contains(of.Err.Error(), want) {
				w.Errorf("%v, want %q", err, want)
			}
		}
		try := func(s *semaphore.Semaphore, want string) {
			w.Helper()
			_, err := s.TryLock(w.Context(), key)
			says(err, want)
		}
		wait := func(s *semaphore.Semaphore, want string) {
			w.Helper()
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			_, err := s.Lock(ctx, key)
			says(err, want)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), ": timed out after ") {
				w.Error(err)
			}
		}
		const n, all, few = 3, "all 3 permits are held, one of them by web-7:4211 for 3 s unless renewed",
			"fewer than 3 of the 3 permits are free, one is held by web-7:4211 for 3 s unless renewed"
		own, other := semaphore.New(w.Client(), n), w.Client()
		some := semaphore.New(other, n)
		a := w.lock(own, locker.Label("web-7:4211"))
		try(some.Weight(n), few)
		b := w.lock(own.Weight(n-1), locker.Label("web-7:4211"))
		try(some, all)
		try(semaphore.New(other, 1), "held by web-7:4211 for 3 s unless renewed")
		wait(some, "all 3 permits are held, one of them by web-7:4211")
		got := make(chan *semaphore.Permit)
		go func() { got <- w.lock(semaphore.New(w.Client(), n), locker.Label("web-8:1")) }()
		time.Sleep(time.Second)
		const queue = "others wait for some of the 3 permits, the first of them is web-8:1"
		wait(some, queue)
		if w.Steps { // otherwise TryLock looks at the permits, and not at the gate
			try(some, queue)
			try(semaphore.New(other, 1), "others wait for the permit, the first of them is web-8:1")
		}
		w.Unlock(a)
		w.Unlock(<-got)
		w.Unlock(b)
		w.empty(n)
	})
}

// Errors name the key of the caller, and not the locks that stand for its permits.
func TestErrorsNameTheKeyOfTheCaller(t *testing.T) {
	stores(t, func(w *world) {
		names := func(what string, err error) {
			w.Helper()
			var of *locker.Error
			if err == nil || strings.Contains(err.Error(), "#") || errors.As(err, &of) && of.Key != key {
				w.Errorf("%s: %v", what, err)
			}
		}
		for _, weight := range []int{1, 2} {
			s := semaphore.New(w.Client(), 3)
			for _, end := range []func(p *semaphore.Permit){
				func(p *semaphore.Permit) { w.Unlock(p) },
				func(*semaphore.Permit) {
					for _, name := range s.Locks(key) {
						_, _ = w.Calls.ForceRelease(w.Context(), name, "")
					}
				},
			} {
				p := w.lock(s.Weight(weight))
				end(p)
				names("Verify", locker.Verify(w.Context(), p))
				names("Extend", p.Extend(w.Context()))
				names("Extend", p.Extend(w.Context(), locker.MinHold(time.Second)))
				names("Bind", locker.Bind(w.Context(), p, nil))
				names("Err", p.Err())
				names("Unlock", p.Unlock(w.Context()))
			}
		}
		w.empty(3)
	})
}
