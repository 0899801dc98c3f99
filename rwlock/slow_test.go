package rwlock_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/rwlock"
)

// Readers of a process that wait for a writer share a slot, although they have come one after the other, and the store
// is far away.
func TestReadersThatWaitShareASlot(t *testing.T) {
	stores(t, func(w *world) {
		writes, rw := w.lock(w.process().Exclusive()), w.process()
		w.Calls.Delay(30 * time.Millisecond)
		w.Calls.Answer(30 * time.Millisecond)
		got := make(chan locker.Lease)
		const readers = 100
		for range readers {
			go func() { got <- w.lock(rw.Shared()) }()
			time.Sleep(10 * time.Millisecond)
		}
		w.Unlock(writes)
		tokens := map[string]bool{}
		var leases []locker.Lease
		for range readers {
			lease := <-got
			leases = append(leases, lease)
			tokens[lease.Token()] = true
		}
		if len(tokens) != 1 {
			w.Errorf("%d readers have %d slots", readers, len(tokens))
		}
		w.Calls.Delay(0)
		w.Calls.Answer(0)
		w.Unlock(leases...)
		w.empty()
	})
}

// If each answer takes longer than newcomers share a slot without a question, readers that never pause wait no longer
// than with slots of their own, which others may release before the answer comes. They keep no writer out, and cost no
// more requests than near the store.
func TestReadersFarFromTheStore(t *testing.T) {
	const hold, seconds = 20 * time.Millisecond, 2
	for _, trip := range []time.Duration{60 * time.Millisecond, 110 * time.Millisecond, 400 * time.Millisecond} {
		stores(t, func(w *world) {
			w.Calls.Delay(trip / 2)
			w.Calls.Answer(trip / 2)
			rw := rwlock.New(locker.Defaults(locker.TTL(20 * time.Second))(w.Client()))
			done := make(chan struct{})
			var longest atomic.Int64
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
						}
						start := time.Now()
						lease := w.lock(rw.Shared())
						if took := int64(time.Since(start)); took > longest.Load() {
							longest.Store(took)
						}
						time.Sleep(hold/2 + rand.N(hold/2))
						all.Go(func() { w.Unlock(lease) })
					}
				})
			}
			time.Sleep(time.Second)
			w.Calls.Took()
			longest.Store(0)
			time.Sleep(seconds * time.Second)
			own := 2 * trip // the gate and a slot
			if w.Steps {
				own = trip
			}
			if took := time.Duration(longest.Load()); took > own+hold {
				w.Errorf("answers take %v, and a reader waited for %v", trip, took)
			}
			calls := w.Calls.Took()
			if n := calls["AcquireMany"] + calls["Acquire"] + calls["Queue"]; n > seconds*18 || calls["Extend"] > seconds*20 {
				w.Errorf("answers take %v, and readers without pause made %v in %d s", trip, calls, seconds)
			}
			bound := 6*trip + 50*time.Millisecond + hold // four requests, and what the last reader releases
			if !w.Queues {
				bound += 5 * time.Second
			}
			for range 3 {
				start := time.Now()
				lease := w.lock(w.process().Exclusive())
				if took := time.Since(start); took > bound {
					w.Errorf("answers take %v, and a writer waited for %v", trip, took)
				}
				w.Unlock(lease)
				time.Sleep(time.Second)
			}
			close(done)
			all.Wait()
			w.Calls.Delay(0)
			w.Calls.Answer(0)
			w.empty()
		})
	}
}

// An answer about a slot is of the past. If it is so late that newcomers have shared the slot for long enough, they do
// not any more.
func TestAnswerThatComesLate(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Answers {
			return
		}
		rw := rwlock.New(locker.Defaults(locker.TTL(20 * time.Second))(w.Client()))
		first := w.lock(rw.Shared())
		time.Sleep(60 * time.Millisecond)
		w.Calls.Answer(time.Second)
		read := make(chan locker.Lease)
		go func() { read <- w.lock(rw.Shared()) }()
		time.Sleep(10 * time.Millisecond)
		w.Calls.Answer(0) // to others
		writes := w.waiting(w.process().Exclusive())
		time.Sleep(time.Second)
		select {
		case <-read:
			w.Fatal("a reader overtook the writer")
		default:
		}
		w.Unlock(first)
		w.Unlock(<-writes)
		w.Unlock(<-read)
		w.empty()
	})
}
