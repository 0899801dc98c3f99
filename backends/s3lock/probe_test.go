package s3lock_test

import (
	"context"
	"errors"
	"fmt"
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
		for range 2 { // the second Client finds the object of the first one, after whose update a probe has succeeded
			l := s.lockClient(t)
			for range 2 {
				_, err := l.TryLock(t.Context(), "k")
				want := "the server ignores the condition " + ignored
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

// compared says whether the condition of a write holds.
func (s *server) compared(r *http.Request) bool {
	o, err := s.data.HeadObject(bucket, strings.TrimPrefix(r.URL.Path, "/"+bucket+"/"))
	if match := r.Header.Get("If-Match"); match != "" {
		return err == nil && fmt.Sprintf(`"%x"`, o.Hash) == match
	}
	return err != nil || r.Header.Get("If-None-Match") == ""
}

// A server that compares, and then writes, accepts two of the writes that come at the same time. It is refused,
// whichever condition has this fault, and by a Client that finds the object of an earlier one, too.
func TestServersThatCompareAndThenWriteAreRefused(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{"If-None-Match", "If-Match"} {
		s := start(t)
		var mu sync.Mutex
		waiting := make(chan struct{})
		s.answer(func(r *http.Request) *answer {
			if r.Method != http.MethodPut || r.Header.Get(condition) == "" {
				return nil
			}
			if !s.compared(r) {
				return refusal(412, "PreconditionFailed")
			}
			r.Header.Del(condition)
			mu.Lock()
			second := waiting
			select {
			case second <- struct{}{}: // another write has compared, too
				mu.Unlock()
				return nil
			default:
			}
			mu.Unlock()
			select {
			case <-second:
			case <-time.After(100 * time.Millisecond):
			}
			return nil
		})
		for range 2 {
			_, err := s.store(t).Create(t.Context(), "k", []byte("{}"))
			want := condition + ", or compares and writes in two steps: of 8 writes of s3://locks/team/=probe"
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, expected %q", err, want)
			}
			if condition == "If-None-Match" {
				s.delete("team/=probe") // only the first Client of all creates it
			}
		}
	}
}

// A server that refuses every If-Match would grant each lock once, and nobody could renew or release it.
func TestServersThatRefuseEveryIfMatchAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.answer(func(r *http.Request) *answer {
		if r.Header.Get("If-Match") != "" {
			return refusal(412, "PreconditionFailed")
		}
		return nil
	})
	for range 2 {
		_, err := s.lockClient(t).TryLock(t.Context(), "k")
		const want = "the server refuses every write with the condition If-Match"
		if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

// Races are run again a day after those that the object of the probe tells of, and if a clock was ahead.
func TestRacesOncePerDay(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, c := range []struct {
		text string
		want int
	}{
		{"", 1 + 8 + 2 + 3*8 + 1},
		{fmt.Sprintf(`{"probe":"x","raced":%q}`, time.Now().Add(-23*time.Hour).Format(time.RFC3339)), 3},
		{fmt.Sprintf(`{"probe":"x","raced":%q}`, time.Now().Add(-25*time.Hour).Format(time.RFC3339)), 3 + 3*8 + 1},
		{fmt.Sprintf(`{"probe":"x","raced":%q}`, time.Now().Add(time.Hour).Format(time.RFC3339)), 3 + 3*8 + 1},
		{`{"probe":"of an earlier version"}`, 3 + 3*8 + 1},
		{"no JSON", 3 + 3*8 + 1},
	} {
		if c.text != "" {
			s.put("team/=probe", c.text)
		}
		for i, want := range []int{c.want, 3} { // the next Client need not
			s.set(func() { s.seen = nil })
			if _, err := s.store(t).Create(t.Context(), "k", []byte("{}")); err != nil && !errors.Is(err, record.ErrConflict) {
				t.Fatal(err)
			}
			if _, probe := s.requests(); probe != want {
				t.Errorf("%q, Client %d: %d requests of the probe, expected %d", c.text, i, probe, want)
			}
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
	if most := 1 + 8 + 2 + 3*(8+1) + 1; len(all) != clients*calls || probe < 3*clients || probe > most*clients {
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
