package s3_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/record"
)

// A server that ignores one of the conditions grants nothing, and the error says which one.
func TestServersThatIgnoreConditionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, ignored := range []string{"If-None-Match", "If-Match"} {
		s := start(t)
		s.answer(func(r *http.Request) *answer {
			r.Header.Del(ignored)
			return nil
		})
		for range 2 { // the second Client finds the object of the first one
			l := s.lockClient(t)
			for range 2 {
				_, err := l.TryLock(t.Context(), "k")
				want := "the server ignores the condition " + ignored + ": of two writes of s3://locks/team/=probe"
				if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, expected %q", ignored, err, want)
				}
			}
			s.answer(nil) // somebody has updated the server
			lease, err := l.TryLock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			s.answer(func(r *http.Request) *answer {
				r.Header.Del(ignored)
				return nil
			})
		}
	}
}

// There is one probe for each Client, however many calls wait for it, and other Clients do not disturb it.
func TestOneProbe(t *testing.T) {
	t.Parallel()
	const clients, calls = 4, 10
	s := start(t)
	var wg sync.WaitGroup
	for range clients {
		store := s.store(t)
		for i := range calls {
			wg.Go(func() {
				if _, err := store.Create(t.Context(), "k", []byte("{}")); err != nil && !errors.Is(err, record.ErrConflict) {
					t.Errorf("call %d: %v", i, err)
				}
			})
		}
	}
	wg.Wait()
	all, probe := s.requests()
	if len(all) != clients*calls || probe < 3*clients || probe > 5*clients {
		t.Errorf("%d requests and %d of the probe", len(all), probe)
	}
}

// Nothing is written as long as the probe has not succeeded. It is repeated after a fault, and goes on when the call
// that has begun it has ended.
func TestProbeGoesOn(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := s.store(t, once)
	s.answer(func(*http.Request) *answer { return refusal(403, "AccessDenied") })
	_, err := store.Create(t.Context(), "k", []byte("{}"))
	if err == nil || !strings.Contains(err.Error(), "probing conditional writes: ") ||
		!strings.Contains(err.Error(), "grant s3:GetObject") {
		t.Errorf("without rights: %v", err)
	}
	s.answer(nil)
	resume := s.hang()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := store.Create(ctx, "k", []byte("{}")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the server hangs: %v", err)
	}
	resume()
	if _, err := store.Create(t.Context(), "k", []byte("{}")); err != nil {
		t.Error(err)
	}
	if all, _ := s.requests(); len(all) != 1 {
		t.Errorf("requests: %v", all)
	}
}

// Close ends a probe in progress, and there is none after it.
func TestCloseEndsTheProbe(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := s.store(t)
	defer s.hang()()
	done := make(chan error, 1)
	go func() {
		_, err := store.Create(t.Context(), "k", []byte("{}"))
		done <- err
	}()
	for _, probe := s.requests(); probe == 0; _, probe = s.requests() {
		<-time.After(time.Millisecond)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil || errors.Is(err, record.ErrConflict) {
		t.Errorf("a call that waits for the probe: %v", err)
	}
	if _, err := store.Create(t.Context(), "k", []byte("{}")); !errors.Is(err, context.Canceled) {
		t.Errorf("after Close: %v", err)
	}
}
