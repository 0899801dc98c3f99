package s3lock_test

import (
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

func TestStore(t *testing.T) {
	recordtest.Run(t, func(t testing.TB, url string) (record.Store, string) {
		if url == "" {
			url = start(t).http.URL
		}
		s := &server{http: &httptest.Server{URL: url}} // as another process knows it
		return s.store(t), url
	})
}

// faults returns what the suites do to a server.
func (s *server) faults() conformance.Store {
	return conformance.Store{
		Delete: func(key string) { s.delete(keyOf(key)) },
		Foreign: func(key string) (intact func() bool) {
			s.put(keyOf(key), "not a lock")
			return func() bool { return s.text(keyOf(key)) == "not a lock" }
		},
		Hang: s.hang, Down: s.breakDown, LoseReply: s.loseReply, Left: s.taken,
	}
}

// With clients of the program's own. A TTL also bounds the requests that are made for it, and machines are busy.
func TestConformance(t *testing.T) {
	conformance.RunBackend(t, conformance.Harness{
		MinTTL: 400 * time.Millisecond,
		Store: func(t testing.TB) conformance.Store {
			s := start(t)
			store := s.faults()
			store.Open = func() backend.Backend {
				return record.NewBackend(s.store(t), record.Prefix(prefix), record.Poll(50*time.Millisecond))
			}
			return store
		},
	})
}

// With the clients that a configuration makes. Each PUT is executed twice, and its answer is that of the second time,
// as when the SDK repeats a request whose answer was lost.
func TestRequestsThatAreExecutedTwice(t *testing.T) {
	t.Parallel()
	const clients, locks = 3, 10
	s := start(t)
	s.set(func() { s.twice = true })
	var wg sync.WaitGroup
	var holders atomic.Int32
	for range clients {
		l, err := config.Open(t.Context(), s.url("&poll=20ms"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		wg.Go(func() {
			for range locks {
				lease, err := l.Lock(t.Context(), "k", locker.TTL(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				if err := lease.Extend(t.Context()); err != nil {
					t.Error(err)
				}
				holders.Add(-1)
				// If two others have had the lock since the first execution, the second one cannot tell that from a loss.
				if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, locker.ErrNotHeld) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left := s.taken(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
