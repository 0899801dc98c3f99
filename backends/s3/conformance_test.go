package s3_test

import (
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

func TestStore(t *testing.T) {
	recordtest.Run(t, func(t testing.TB, n int) []record.Store {
		s := start(t)
		all := make([]record.Store, n)
		for i := range all {
			all[i] = s.store(t)
		}
		return all
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

// With a client of the program's own.
func TestConformance(t *testing.T) {
	conformance.RunBackend(t, conformance.Harness{
		Labels: true, Verifies: true,
		Store: func(t testing.TB) conformance.Store {
			s := start(t)
			store := s.faults()
			store.Open = func() locker.Backend {
				return record.NewBackend(s.store(t), record.Poll(50*time.Millisecond))
			}
			return store
		},
	})
}

// With the client that a configuration makes. Each PUT is executed twice, and its answer is that of the second time, as
// when the SDK repeats a request whose answer was lost.
func TestConformanceWhenRequestsAreRepeated(t *testing.T) {
	conformance.RunLocker(t, conformance.Harness{
		Labels: true, Verifies: true,
		Store: func(t testing.TB) conformance.Store {
			s := start(t)
			s.twice = true
			store := s.faults()
			store.Client = func() locker.Locker {
				l, err := config.Open(t.Context(), s.url("&poll=50ms"))
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			return store
		},
	})
}
