package record_test

import (
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/record"
)

// harness describes a store whose requests and replies take that long. faults may be nil.
func harness(latency time.Duration, faults func() func(recordstore.Request) recordstore.Fault,
	opts ...record.Option,
) conformance.Harness {
	return conformance.Harness{Store: func(t testing.TB) conformance.Store {
		s := recordstore.New()
		s.Latency = latency
		start, opened := time.Now().Add(-time.Hour), 0
		t.Cleanup(s.Wait)
		if faults != nil {
			s.Inject(faults())
		}
		return conformance.Store{
			Open: func() backend.Backend {
				id := "a"
				if opened++; opened%3 == 0 { // one process of three does not know the clock of its machine
					id = ""
				}
				return record.NewBackend(host{s, id, start}, opts...)
			},
			Delete:    func(key string) { s.Delete(record.NameOf(key)) },
			Hang:      s.Hang,
			Down:      s.Down,
			LoseReply: s.LoseReply,
			Left:      s.Taken,
			Foreign: func(key string) (intact func() bool) {
				s.Put(record.NameOf(key), "not a lock")
				return func() bool { return s.Text(record.NameOf(key)) == "not a lock" }
			},
		}
	}}
}

// poll is short, because of a Client that looks once a second, beside others that want the lock all the time, the suite
// would sometimes say that it starves.
const poll = 100 * time.Millisecond

func TestConformance(t *testing.T) {
	h := harness(time.Millisecond, nil, record.Poll(poll))
	h.Bubble = virtual.Test
	conformance.RunBackend(t, h)
	conformance.RunSemaphore(t, h)
	conformance.RunRWLock(t, h)
}

// Client libraries repeat requests, and report the success of the first one as a conflict.
func TestConformanceWhenRequestsAreRepeated(t *testing.T) {
	h := harness(time.Millisecond, func() func(recordstore.Request) recordstore.Fault {
		return func(r recordstore.Request) recordstore.Fault { return recordstore.Fault{Twice: r.Op != "get"} }
	}, record.Poll(poll))
	h.Bubble = virtual.Test
	conformance.RunBackend(t, h)
}
