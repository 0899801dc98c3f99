package rwlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/rwlock"
)

// slow is a Locker that tells late that the store has granted a slot, or extended it, and what the answer says of those
// that wait.
type slow struct {
	locker.Locker
	by      time.Duration
	answers bool // and not messages tell of those that wait
}

type slowLease struct {
	wrapping
	*slow
}

func (s *slow) Unwrap() locker.Locker { return s.Locker }

func (s *slow) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := s.Locker.Lock(ctx, key, opts...)
	return s.late(key, lease, err)
}

func (s *slow) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := s.Locker.TryLock(ctx, key, opts...)
	return s.late(key, lease, err)
}

func (s *slow) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	leases, err := locker.TryLockMany(ctx, s.Locker, m, opts...)
	if err != nil {
		return nil, err
	}
	time.Sleep(s.by)
	for i, lease := range leases {
		if lease != nil {
			leases[i] = slowLease{wrapping{lease}, s}
		}
	}
	return leases, nil
}

func (s *slow) late(key string, lease locker.Lease, err error) (locker.Lease, error) {
	if err != nil || key == gate || key == intent {
		return lease, err
	}
	time.Sleep(s.by)
	return slowLease{wrapping{lease}, s}, nil
}

func (l slowLease) Extend(ctx context.Context, opts ...locker.Option) error {
	defer time.Sleep(l.by + time.Microsecond) // Wanted has told it then
	return l.wrapping.Extend(ctx, opts...)
}

func (l slowLease) Unwrap() locker.Lease { return l.Lease }

func (l slowLease) Wanted() <-chan struct{} {
	if !l.answers {
		return locker.Wanted(l.Lease)
	}
	wanted := make(chan struct{})
	go func() {
		select {
		case <-locker.Wanted(l.Lease):
			time.Sleep(l.by)
			close(wanted)
		case <-l.Done():
		}
	}()
	return wanted
}

// The time in which newcomers overtake a writer counts from the question to the store, although the answer comes long
// after the writer. Those that come later wait for no answer but their own.
func TestNewcomersWhileTheAnswerIsUnderWay(t *testing.T) {
	for name, extends := range map[string]bool{"of an extension": true, "of an acquisition": false} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(w *world) {
				if extends && !w.Answers || !extends && !w.Steps {
					return // they need no answer, or the reader has the gate until the answer comes
				}
				const late, bound = 400 * time.Millisecond, 50 * time.Millisecond
				rw := rwlock.New(&slow{locker.Defaults(locker.TTL(20 * time.Second))(w.Client()), late, extends})
				if extends {
					lease := w.lock(rw.Shared())
					time.Sleep(bound)
					time.AfterFunc(2*late, func() { w.Unlock(lease) })
				}
				asked := time.Now()
				var wrote atomic.Bool
				var all sync.WaitGroup
				for i := range 45 {
					all.Go(func() {
						came := time.Since(asked)
						lease := w.lock(rw.Shared())
						overtakes, took := !wrote.Load(), time.Since(asked)-came
						if overtakes != (came < bound) || overtakes && took > late+time.Millisecond {
							w.Errorf("reader %d came after %v, waited for %v, and overtook the writer: %v", i, came, took, overtakes)
						}
						time.Sleep(late / 4)
						w.Unlock(lease)
					})
					time.Sleep(2 * time.Millisecond)
					if i == 0 {
						all.Go(func() {
							lease := w.lock(w.process().Exclusive())
							wrote.Store(true)
							w.Unlock(lease)
						})
					}
					time.Sleep(8 * time.Millisecond)
				}
				all.Wait()
				w.empty()
			})
		})
	}
}

// Readers of a process that wait for a writer share a slot, although they have come one after the other.
func TestReadersThatWaitShareASlot(t *testing.T) {
	stores(t, func(w *world) {
		writes, rw := w.lock(w.process().Exclusive()), w.process()
		got := make(chan locker.Lease)
		const readers = 10
		for range readers {
			go func() { got <- w.lock(rw.Shared()) }()
			time.Sleep(100 * time.Millisecond)
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
			if n := calls["AcquireSome"] + calls["Acquire"] + calls["Queue"]; n > seconds*18 || calls["Extend"] > seconds*20 {
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
