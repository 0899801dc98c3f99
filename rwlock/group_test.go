package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// groups runs f in virtual time for the stores that have groups.
func groups(t *testing.T, f func(w *world)) {
	stores(t, func(w *world) {
		if w.Groups {
			f(w)
		}
	})
}

// Readers of many processes read after a writer, each a round trip after it has left. A writer that waits for them all
// has the key a round trip after the last one.
func TestReadersOfManyProcessesAreServedTogether(t *testing.T) {
	groups(t, func(w *world) {
		const processes, trip = 200, 10 * time.Millisecond // more than there are slots on other stores
		writes := w.lock(w.process().Exclusive())
		got := make(chan locker.Lease, processes)
		for range processes {
			rw := w.process()
			go func() { got <- w.lock(rw.Shared()) }()
		}
		time.Sleep(time.Second)
		w.Calls.Answer(trip)
		start := time.Now()
		go w.Unlock(writes)
		var leases []locker.Lease
		for range processes {
			leases = append(leases, <-got)
		}
		if took := time.Since(start); took > trip {
			w.Errorf("the last of %d readers waited for %v", processes, took)
		}
		next := w.waiting(w.process().Exclusive())
		for _, lease := range leases {
			go w.Unlock(lease)
		}
		start = time.Now()
		lease := <-next
		if took := time.Since(start); took > trip {
			w.Errorf("a writer waited for %v after the last reader", took)
		}
		w.Unlock(lease)
		w.Calls.Answer(0)
		w.empty()
	})
}

// A writer is one entry: one request acquires, renews and releases it. Waiting is one request, too.
func TestWriterIsOneLease(t *testing.T) {
	groups(t, func(w *world) {
		lease := w.lock(w.process().Exclusive())
		waits := w.waiting(w.process().Exclusive())
		time.Sleep(10 * ttl)
		w.Unlock(lease)
		lease = <-waits
		if calls := w.Calls.Took(); calls["Queue"] != 2 || calls["Extend"] > 35 || calls["Release"] != 1 || len(calls) != 3 {
			w.Errorf("%v", calls)
		}
		if lease.Token() == "" {
			w.Error("a writer has no owner value")
		}
		w.Unlock(lease)
		w.empty()
	})
}

// A downgrade that the store has not answered is asked for again by the renewals.
func TestDowngradeThatIsNotAnswered(t *testing.T) {
	groups(t, func(w *world) {
		writes := w.lock(w.process().Exclusive(), locker.Label("silent"))
		w.Calls.Kill("silent")
		reads, err := rwlock.Downgrade(w.Context(), writes)
		if err != nil {
			w.Fatal(err)
		}
		w.Calls.Kill("")
		w.refused(w.process().Shared())
		time.Sleep(ttl / 2)
		w.Unlock(w.lock(w.process().Shared()), reads)
		w.empty()
	})
}

// MinHold of a writer keeps everybody out for as long, also after a downgrade, and no longer than until the renewal
// after that.
func TestDowngradeKeepsMinHold(t *testing.T) {
	groups(t, func(w *world) {
		for _, unlocks := range []bool{false, true} {
			reads, err := rwlock.Downgrade(w.Context(), w.lock(w.process().Exclusive(), locker.MinHold(time.Minute)))
			if err != nil {
				w.Fatal(err)
			}
			if unlocks {
				w.Unlock(reads)
			}
			time.Sleep(time.Minute - 1)
			w.refused(w.process().Shared())
			time.Sleep(ttl)
			w.Unlock(w.lock(w.process().Shared()))
			if !unlocks {
				w.refused(w.process().Exclusive())
				w.Unlock(reads)
			}
			w.empty()
		}
	})
}

// An upgrade of what the store has lost says so, although no renewal has found it out.
func TestUpgradeOfWhatIsLost(t *testing.T) {
	groups(t, func(w *world) {
		up := w.lock(w.process().Upgradeable())
		w.lose()
		if _, err := rwlock.Upgrade(w.Context(), up); !errors.Is(err, locker.ErrLost) {
			w.Error(err)
		}
		_ = up.Unlock(w.Context())
		w.empty()
	})
}

// An upgrade that waits ends with the lease that it is of, also if the store still has that.
func TestUpgradeEndsWithItsLease(t *testing.T) {
	groups(t, func(w *world) {
		reads := w.lock(w.process().Shared())
		up := w.lock(w.process().Upgradeable(), locker.MaxHold(10*time.Second), locker.TTL(time.Minute))
		start := time.Now()
		if _, err := rwlock.Upgrade(w.Context(), up); !errors.Is(err, locker.ErrLost) || time.Since(start) > 10*time.Second {
			w.Errorf("%v after %v", err, time.Since(start))
		}
		_ = up.Unlock(w.Context())
		w.Unlock(reads)
		w.empty()
	})
}

// A middleware has to pass on the context of its caller. If it does not, calls are refused, a question counts as not
// asked, and a downgrade gives the key back.
func TestMiddlewareWithAContextOfItsOwn(t *testing.T) {
	groups(t, func(w *world) {
		rw := rwlock.New(placestest.Forgetful(w.Client()))
		for _, l := range []locker.Locker{rw.Shared(), rw.Exclusive(), rw.Upgradeable()} {
			if _, err := l.TryLock(w.Context(), key); !errors.Is(err, locker.ErrInvalid) {
				w.Errorf("%v, want %v", err, locker.ErrInvalid)
			}
		}
		if seen, err := w.Client().Inspect(w.Context(), rw.Locks(key)[0]); err != nil || seen.State != inspect.Free {
			w.Errorf("%s, %v", seen.State, err)
		}
		writes := w.lock(rw.Exclusive())
		if _, err := rwlock.Downgrade(w.Context(), writes); !errors.Is(err, locker.ErrInvalid) {
			w.Errorf("%v, want %v", err, locker.ErrInvalid)
		}
		w.empty()
		if w.Tells {
			return
		}
		first := w.lock(rw.Shared())
		writer := make(chan locker.Lease)
		go func() { writer <- w.lock(w.process().Exclusive()) }()
		time.Sleep(time.Second)
		second := w.waiting(rw.Shared())
		w.Unlock(first)
		w.Unlock(<-writer)
		w.Unlock(<-second)
		w.empty()
	})
}

// Where nobody knows of the group, a key is made of locks, as on stores without groups.
func TestReadersWhereNobodyKnowsOfTheGroup(t *testing.T) {
	groups(t, func(w *world) {
		for name, below := range map[string]func() locker.Locker{
			"other names":    func() locker.Locker { return placestest.Hashing(w.Client()) },
			"a shared lock":  func() locker.Locker { return rwlock.New(w.Client()).Shared() },
			"another permit": func() locker.Locker { return semaphore.New(w.Client(), 1) },
		} {
			for range 2 {
				one, two := rwlock.New(below()), rwlock.New(below())
				if name == "a shared lock" { // which gives slots to several
					w.Unlock(w.lock(one.Exclusive()))
					continue
				}
				written := w.lock(one.Exclusive())
				w.refused(two.Shared())
				w.Unlock(written)
				up := w.lock(two.Upgradeable())
				writes, err := rwlock.Upgrade(w.Context(), up)
				if err != nil {
					w.Fatalf("%s: %v", name, err)
				}
				w.Unlock(writes)
			}
		}
		w.empty()
	})
}

// A middleware may have no Unwrap, or acquire twice. Its callers have entries of the same group.
func TestGroupBehindMiddleware(t *testing.T) {
	groups(t, func(w *world) {
		for _, wrap := range []locker.Middleware{placestest.Opaque, placestest.Hedging} {
			rw := rwlock.New(wrap(w.Client()))
			reads := w.lock(rw.Shared())
			w.refused(w.process().Exclusive())
			w.Unlock(reads)
			up := w.lock(rw.Upgradeable())
			writes, err := rwlock.Upgrade(w.Context(), up)
			if err != nil {
				w.Fatal(err)
			}
			w.refused(w.process().Shared())
			reads, err = rwlock.Downgrade(w.Context(), writes)
			if err != nil {
				w.Fatal(err)
			}
			w.Unlock(w.lock(w.process().Shared()), reads)
			w.empty()
		}
	})
}

// Readers of one process read for long, and many come in a second. None of them waits, and they share one entry.
func TestReadersThatReadForLongDoNotStall(t *testing.T) {
	groups(t, func(w *world) {
		rw := w.process()
		var mu sync.Mutex
		entries := map[string]bool{}
		var all sync.WaitGroup
		for range 20 * 120 { // two minutes
			all.Go(func() {
				start := time.Now()
				lease := w.lock(rw.Shared())
				if took := time.Since(start); took > 0 {
					w.Errorf("a reader waited for %v", took)
				}
				mu.Lock()
				entries[lease.Token()] = true
				mu.Unlock()
				time.Sleep(45 * time.Second)
				w.Unlock(lease)
			})
			time.Sleep(50 * time.Millisecond)
		}
		start := time.Now()
		writes := w.lock(w.process().Exclusive())
		if took := time.Since(start); took > 45*time.Second {
			w.Errorf("a writer waited for %v", took)
		}
		w.Unlock(writes)
		all.Wait()
		if len(entries) != 1 {
			w.Errorf("%d entries", len(entries))
		}
		w.empty()
	})
}

// A writer waits for those that read when it comes, and for nobody who comes later, although readers of each process
// come all the time and read for long. Where the store answers that a writer waits, a process may not know of it for as
// long as it does not ask.
func TestWriterWaitsForNobodyWhoComesLater(t *testing.T) {
	groups(t, func(w *world) {
		const processes, reads, every, unasked = 10, 45 * time.Second, 50 * time.Millisecond, 50 * time.Millisecond
		var late time.Duration
		if !w.Tells {
			late = unasked
		}
		var rws []*rwlock.RWLock
		for range processes {
			rws = append(rws, w.process())
		}
		var mu sync.Mutex
		var came, served time.Time // the writer
		var all sync.WaitGroup
		start := time.Now()
		for i := range int(3 * reads / every) {
			all.Go(func() {
				begun := time.Now()
				lease := w.lock(rws[i%processes].Shared())
				mu.Lock()
				if !came.IsZero() && begun.After(came.Add(late)) && served.IsZero() {
					w.Errorf("a reader that came %v after the writer reads before it", begun.Sub(came))
				}
				mu.Unlock()
				time.Sleep(reads)
				w.Unlock(lease)
			})
			time.Sleep(every)
			if came.IsZero() && time.Since(start) > reads {
				mu.Lock()
				came = time.Now()
				mu.Unlock()
				all.Go(func() {
					lease := w.lock(w.process().Exclusive())
					mu.Lock()
					served = time.Now()
					took := served.Sub(came)
					mu.Unlock()
					if took > reads+late || took < reads-2*every {
						w.Errorf("the writer waited for %v", took)
					}
					w.Unlock(lease)
				})
			}
		}
		all.Wait()
		w.empty()
	})
}

// An upgradeable holder keeps writers out, and others that want to be upgradeable. Readers come and go, also while some
// of these wait.
func TestReadersPassThoseThatWaitToBeUpgradeable(t *testing.T) {
	groups(t, func(w *world) {
		up := w.lock(w.process().Upgradeable())
		second := w.waiting(w.process().Upgradeable())
		w.Unlock(w.lock(w.process().Shared()))
		lease, err := w.process().Shared().TryLock(w.Context(), key)
		if err != nil {
			w.Fatal(err)
		}
		w.Unlock(lease, up)
		w.Unlock(<-second)
		w.empty()
	})
}

// The name of a group is that of no lock.
func TestNameOfAGroupIsThatOfNoLock(t *testing.T) {
	groups(t, func(w *world) {
		c := w.Client()
		for _, name := range []string{group, "a{b}c##rw", "{#}}a##:rw"} {
			if _, err := c.TryLock(w.Context(), name); !errors.Is(err, locker.ErrInvalid) {
				w.Errorf("%q: %v", name, err)
			}
		}
		w.Unlock(w.Lock(c, "config#rw"))
		synctest.Wait()
	})
}

// Readers share an entry until a writer waits, also behind a middleware whose leases hide theirs.
func TestReadersBehindAMiddlewareWithoutUnwrap(t *testing.T) {
	groups(t, func(w *world) {
		w.Calls.Answer(time.Millisecond)
		rw := rwlock.New(placestest.Opaque(w.Client()))
		entries := map[string]bool{}
		var leases []locker.Lease
		for range 100 {
			leases = append(leases, w.lock(rw.Shared()))
			entries[leases[len(leases)-1].Token()] = true
			time.Sleep(100 * time.Millisecond)
		}
		if len(entries) != 1 {
			w.Errorf("%d entries", len(entries))
		}
		writes := w.waiting(w.process().Exclusive())
		w.refused(rw.Shared())
		w.Unlock(leases...)
		w.Unlock(<-writes)
		w.empty()
	})
}

// both is a middleware that acquires another lock with each.
type both struct {
	locker.Locker
	n *atomic.Int64
}

func (b both) Unwrap() locker.Locker { return b.Locker }

func (b both) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return locker.LockAll(ctx, b.Locker, []string{key, fmt.Sprint(b.n.Add(1))}, opts...)
}

func (b both) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return locker.TryLockAll(ctx, b.Locker, []string{key, fmt.Sprint(b.n.Add(1))}, opts...)
}

// A middleware may acquire several locks for each. What is wanted of a group is no lock of that name then, which would
// exclude none of those that have entries.
func TestMiddlewareThatAcquiresSeveralLocks(t *testing.T) {
	groups(t, func(w *world) {
		w.Calls.Answer(time.Millisecond)
		var all sync.WaitGroup
		var others, writers atomic.Int64
		for range 3 {
			rw := rwlock.New(both{w.Client(), &others})
			all.Go(func() {
				lease := w.lock(rw.Exclusive())
				if n := writers.Add(1); n > 1 {
					w.Errorf("%d writers", n)
				}
				time.Sleep(time.Second)
				writers.Add(-1)
				w.Unlock(lease)
			})
		}
		all.Wait()
		w.empty()
	})
}

// balks is a middleware that hides what is below, and refuses every other call, or acquires a lock then.
type balks struct {
	next  locker.Locker
	n     int
	locks bool
}

func (b *balks) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	switch b.n++; {
	case b.n%2 == 1:
		return b.next.Lock(ctx, key, opts...)
	case b.locks:
		return b.next.Lock(ctx, "lock", opts...)
	}
	return nil, errors.ErrUnsupported
}

func (b *balks) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return b.Lock(ctx, key, opts...)
}

// A middleware that has known of the group, and knows nothing of it later, is refused. With locks, a caller would hold
// the key beside those that have entries.
func TestMiddlewareThatDoesNotKnowOfTheGroupAnyMore(t *testing.T) {
	groups(t, func(w *world) {
		for locks, want := range map[bool]error{false: errors.ErrUnsupported, true: locker.ErrInvalid} {
			rw := rwlock.New(&balks{next: w.Client(), locks: locks})
			writes := w.lock(rw.Exclusive())
			if _, err := rw.Exclusive().Lock(w.Context(), key); !errors.Is(err, want) {
				w.Errorf("%v, want %v", err, want)
			}
			if names := rw.Locks(key); len(names) != 1 {
				w.Errorf("the names of an entry are %q", names)
			}
			w.Unlock(writes)
			w.Free("lock")
			w.empty()
		}
	})
}
