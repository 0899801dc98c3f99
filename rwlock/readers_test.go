package rwlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/rwlock"
)

// A writer is overtaken by no reader that comes after it, unless another writer is ahead of it, and then at most once
// by each reader. A reader is overtaken by one writer at most. So neither class starves, however often others come.
func TestNeitherClassStarves(t *testing.T) {
	stores(t, func(w *world) {
		const readers, writers, rounds = 4, 3, 6
		type call struct {
			kind            string
			caller          int
			called, granted time.Time
		}
		var mu sync.Mutex
		var calls []call
		var all sync.WaitGroup
		run := func(kind string, caller int, l locker.Locker) {
			all.Go(func() {
				for range rounds {
					c := call{kind, caller, time.Now(), time.Time{}}
					lease := w.lock(l, locker.NoLocalHandover()) // which shares no slot
					c.granted = time.Now()
					mu.Lock()
					calls = append(calls, c)
					mu.Unlock()
					time.Sleep(time.Millisecond + rand.N(5*time.Millisecond))
					w.Unlock(lease)
				}
			})
		}
		for i := range readers {
			run("read", i, w.process().Shared())
		}
		for i := range writers {
			run("write", i, w.process().Exclusive())
		}
		all.Wait() // so nobody waits for ever
		if !w.Queues {
			return
		}
		for _, c := range calls {
			overtaken := map[int]int{} // by callers of the other class
			ahead := 0
			for _, other := range calls {
				came := !other.called.After(c.called) && other.granted.After(c.called) && other.granted.Before(c.granted)
				if came && other.kind == "write" {
					ahead++
				}
				if other.kind != c.kind && other.called.After(c.called) && other.granted.Before(c.granted) {
					overtaken[other.caller]++
				}
			}
			for caller, n := range overtaken {
				if c.kind == "write" && n > ahead {
					w.Errorf("a writer was overtaken %d times by reader %d, with %d writers ahead", n, caller, ahead)
				}
			}
			if c.kind == "read" && len(overtaken) > 1 {
				w.Errorf("a reader was overtaken by %d writers", len(overtaken))
			}
		}
	})
}

// A thousand readers of a process that come together share few slots.
func TestReadersOfAProcessShareSlots(t *testing.T) {
	stores(t, func(w *world) {
		for _, acquire := range []func(l locker.Locker) (locker.Lease, error){
			func(l locker.Locker) (locker.Lease, error) { return l.Lock(w.Context(), key) },
			func(l locker.Locker) (locker.Lease, error) { return l.TryLock(w.Context(), key) },
		} {
			rw := w.process()
			tokens := map[string]bool{}
			var mu sync.Mutex
			var all sync.WaitGroup
			for range 1000 {
				all.Go(func() {
					lease, err := acquire(rw.Shared())
					if err != nil {
						w.Error(err)
						return
					}
					mu.Lock()
					tokens[lease.Token()] = true
					mu.Unlock()
					time.Sleep(rand.N(10 * time.Millisecond))
					w.Unlock(lease)
				})
			}
			all.Wait()
			synctest.Wait()
			asked := w.Calls.Took()
			if n := asked["AcquireMany"] + asked["Acquire"] + asked["Queue"]; len(tokens) > 2 || n > 6 {
				w.Errorf("a thousand readers had %d slots, and made %v", len(tokens), asked)
			}
			w.empty()
			w.Calls.Took()
		}
	})
}

// Newcomers that share a slot overtake a writer for 50 ms, or for 500 ms where the store tells nothing. It is 10 ms for
// a slot that its process has waited for. Readers that never pause cost the store a request in 50 ms and process.
func TestNewcomersDoNotKeepAWriterOut(t *testing.T) {
	stores(t, func(w *world) {
		const processes, hold, late = 3, 20 * time.Millisecond, 500 * time.Millisecond
		done := make(chan struct{})
		var all sync.WaitGroup
		var rw *rwlock.RWLock
		for range processes {
			own := rwlock.New(locker.Defaults(locker.TTL(20 * time.Second))(w.Client()))
			rw = own
			for range 5 { // one of them always reads
				all.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
							lease := w.lock(own.Shared())
							time.Sleep(hold/2 + rand.N(hold/2))
							w.Unlock(lease)
						}
					}
				})
			}
		}
		time.Sleep(time.Second)
		w.Calls.Took()
		time.Sleep(time.Second)
		calls := w.Calls.Took()
		// Every 500 ms they acquire a slot, with a gate and up to three attempts, or 64 where the store polls.
		if n := calls["AcquireMany"] + calls["Acquire"] + calls["Queue"]; n > processes*3*6 && w.Queues {
			w.Errorf("readers without pause made %v in a second", calls)
		}
		asks := 1
		switch {
		case w.Answers:
			asks = 20
		case w.Groups: // they ask by an Extend where others look at the gate
			asks = 2
		}
		if n := calls["Extend"]; n > processes*asks {
			w.Errorf("readers without pause asked %v in a second", calls)
		}
		for _, l := range []locker.Locker{w.process().Exclusive(), rw.Exclusive(), w.process().Exclusive()} {
			time.Sleep(time.Second)
			start, bound := time.Now(), 50*time.Millisecond+hold
			lease := w.lock(l)
			if took := time.Since(start); took > bound && w.Queues || took > late+5*time.Second {
				w.Errorf("a writer waited for %v", took)
			}
			second := make(chan locker.Lease)
			go func() { second <- w.lock(w.process().Exclusive()) }()
			time.Sleep(hold) // all wait for the writer
			start, bound = time.Now(), 10*time.Millisecond+hold
			w.Unlock(lease)
			lease = <-second
			if took := time.Since(start); took > bound && w.Queues {
				w.Errorf("a writer waited for %v while readers came that had waited themselves", took)
			}
			w.Unlock(lease)
		}
		close(done)
		all.Wait()
		w.empty()
	})
}

// telling is a Locker whose leases tell whether they are wanted.
type telling struct {
	locker.Locker
	wanted <-chan struct{}
}

type told struct {
	wrapping
	wanted <-chan struct{}
}

func (t told) Wanted() <-chan struct{} { return t.wanted }

func (t telling) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return t.wrap(t.Locker.TryLock(ctx, key, opts...))
}

func (t telling) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return t.wrap(t.Locker.Lock(ctx, key, opts...))
}

// seen is a telling that does not hide what the store can do.
type seen struct{ telling }

func (s seen) Unwrap() locker.Locker { return s.Locker }

func (t telling) wrap(lease locker.Lease, err error) (locker.Lease, error) {
	if err != nil {
		return nil, err
	}
	return wrapping{told{wrapping{lease}, t.wanted}}, nil
}

// While nobody waits for the key, newcomers share a slot, whatever its lease tells and however long they do. If a
// writer waits, they overtake it for as long as its wait is not known: for a twentieth of the TTL or half a second at
// most.
func TestNewcomersShareUntilAWriterWaits(t *testing.T) {
	stores(t, func(w *world) {
		silent, told := make(chan struct{}), make(chan struct{})
		close(told)
		base := locker.Defaults(locker.TTL(20 * time.Second))(w.Client())
		short := locker.Defaults(locker.TTL(5 * time.Second))(w.Client())
		for _, tt := range []struct {
			l         locker.Locker
			after     time.Duration
			overtakes bool
		}{
			{base, 40 * time.Millisecond, true},
			{base, 60 * time.Millisecond, !w.Tells && !w.Answers},
			{telling{base, nil}, 40 * time.Millisecond, true},
			{telling{base, nil}, 60 * time.Millisecond, false},
			{telling{base, told}, 40 * time.Millisecond, true},
			{telling{base, told}, 60 * time.Millisecond, false},
			{telling{base, silent}, 450 * time.Millisecond, true},
			{telling{base, silent}, 550 * time.Millisecond, false},
			{telling{short, silent}, 200 * time.Millisecond, true},
			{telling{short, silent}, 300 * time.Millisecond, false},
			{seen{telling{base, silent}}, 550 * time.Millisecond, false},
		} {
			overtakes := tt.overtakes && (!w.Groups || tt.after < 50*time.Millisecond) // the store is asked then
			told := w.Groups && tt.l == locker.Locker(telling{base, told})             // so it is not asked
			for _, writes := range []bool{false, true} {
				rw := rwlock.New(tt.l)
				first := w.lock(rw.Shared())
				var writer chan locker.Lease
				if writes {
					writer = make(chan locker.Lease)
					go func() { writer <- w.lock(w.process().Exclusive()) }()
				}
				time.Sleep(tt.after)
				second := make(chan locker.Lease, 1)
				go func() { second <- w.lock(rw.Shared()) }()
				time.Sleep(5 * time.Millisecond)
				if shares := len(second) == 1; shares != (overtakes || !writes) {
					w.Errorf("%T after %v: a newcomer shares the slot: %v, and a writer waits: %v", tt.l, tt.after, shares, writes)
				}
				w.Unlock(first)
				if len(second) == 1 {
					read := <-second
					if read.Token() != first.Token() && !told {
						w.Errorf("%T after %v: a newcomer has a slot of its own", tt.l, tt.after)
					}
					w.Unlock(read)
					second = nil
				}
				if writes {
					w.Unlock(<-writer)
				}
				if second != nil {
					w.Unlock(<-second)
				}
			}
		}
		w.empty()
	})
}

// A process reads for long, as one that streams does, and new readers come all the time. They stop nobody, and have few
// slots.
func TestReadersDoNotStopReaders(t *testing.T) {
	stores(t, func(w *world) {
		const processes, read, last = 3, 45 * time.Second, 100 * time.Second
		slots, bound := map[string]bool{}, 10*time.Millisecond
		if !w.Queues { // the gate may be taken at that moment
			bound = time.Second
		}
		var mu sync.Mutex
		var all sync.WaitGroup
		for range processes {
			rw := w.process()
			all.Go(func() {
				for start := time.Now(); time.Since(start) < last; time.Sleep(100 * time.Millisecond) {
					all.Go(func() {
						called := time.Now()
						lease := w.lock(rw.Shared())
						if took := time.Since(called); took > bound {
							w.Errorf("a reader waited for %v, and there is no writer", took)
						}
						mu.Lock()
						slots[lease.Token()] = true
						mu.Unlock()
						time.Sleep(read)
						w.Unlock(lease)
					})
				}
			})
		}
		all.Wait()
		if len(slots) > processes {
			w.Errorf("%d processes that read had %d slots", processes, len(slots))
		}
		w.empty()
	})
}

// All slots are taken, and a reader waits for one. Those that share a slot share it with newcomers. The reader has its
// turn, although the newcomers never pause.
func TestAReaderThatWaitsDoesNotStopReaders(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // there are no slots
			return
		}
		var long []locker.Lease
		for range 63 {
			long = append(long, w.lock(w.process().Shared(), locker.Label("long")))
		}
		rw := w.process()
		first := w.lock(rw.Shared())
		waits := w.waiting(w.process().Shared()) // for a second
		second := w.lock(rw.Shared())
		w.Unlock(first)
		if first.Token() != second.Token() {
			w.Error("a newcomer had a slot of its own")
		}
		done := make(chan struct{})
		var all sync.WaitGroup
		for i := range 2 { // one of them always reads
			all.Go(func() {
				time.Sleep(time.Duration(i) * 500 * time.Millisecond)
				for lease := second; ; lease = w.lock(rw.Shared()) {
					if lease != second || i > 0 {
						time.Sleep(900 * time.Millisecond)
					}
					if lease != second {
						w.Unlock(lease)
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
		}
		time.AfterFunc(time.Second, func() { w.Unlock(second) })
		start := time.Now()
		lease := <-waits
		if took := time.Since(start); took > 2*ttl+5*time.Second {
			w.Errorf("a reader waited for %v, while others shared a slot", took)
		}
		w.Unlock(lease)
		close(done)
		all.Wait()
		w.Unlock(long...)
		w.empty()
	})
}

// A writer wants the lease of a reader, and not that of one that has left, although they shared a slot.
func TestLeaseOfAReaderThatHasLeftIsNotWanted(t *testing.T) {
	stores(t, func(w *world) {
		rw := w.process()
		left, stays := w.lock(rw.Shared()), w.lock(rw.Shared())
		w.Unlock(left)
		writer := w.waiting(w.process().Exclusive())
		select {
		case <-locker.Wanted(left):
			w.Error("the lease of a reader that has left is wanted")
		default:
		}
		wanted := locker.Wanted(stays)
		if w.Answers {
			_ = stays.Extend(w.Context())
		}
		select {
		case <-wanted:
		default:
			if w.Tells || w.Answers {
				w.Error("a writer waits, and the lease of a reader is not wanted")
			}
		}
		w.Unlock(stays)
		w.Unlock(<-writer)
		w.empty()
	})
}

// Callers of the same Client are told of at once, on every store. A holder is not told of those that it does not keep
// out, nor of its own upgrade.
func TestCallersOfTheSameClientAreToldOfAtOnce(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Groups {
			return
		}
		rw := w.process()
		up, reads := w.lock(rw.Upgradeable()), w.lock(rw.Shared(), locker.TTL(time.Hour))
		told := func(lease locker.Lease, want bool) {
			w.Helper()
			synctest.Wait()
			select {
			case <-locker.Wanted(lease):
				if !want {
					w.Error("a lease is wanted")
				}
			default:
				if want {
					w.Error("a lease is not wanted")
				}
			}
		}
		told(up, false)
		told(reads, false)
		second := w.waiting(rw.Upgradeable())
		told(up, true)
		told(reads, false)
		w.Unlock(up)
		up = <-second
		upgraded := make(chan locker.Lease)
		go func() {
			writes, err := rwlock.Upgrade(w.Context(), up)
			if err != nil {
				w.Error(err)
			}
			upgraded <- writes
		}()
		told(up, false)
		told(reads, true)
		w.Unlock(reads)
		writes := <-upgraded
		told(writes, false)
		late := w.waiting(rw.Shared())
		told(writes, true)
		downgraded, err := rwlock.Downgrade(w.Context(), writes)
		if err != nil {
			w.Fatal(err)
		}
		told(downgraded, false)
		w.Unlock(downgraded, <-late)
		w.empty()
	})
}

// A reader that waits for a writer who soon leaves does not ask for all slots.
func TestReaderWaitsForFewSlots(t *testing.T) {
	stores(t, func(w *world) {
		written := w.lock(w.process().Exclusive())
		w.Calls.Took()
		time.AfterFunc(50*time.Millisecond, func() { w.Unlock(written) })
		w.Unlock(w.lock(w.process().Shared()))
		calls := w.Calls.Took()
		if n := calls["AcquireMany"] + calls["Acquire"] + calls["Queue"]; n > 32 {
			w.Errorf("a reader that waited made %v", calls)
		}
		w.empty()
	})
}

// Calls with options have slots of their own, and so have calls of a Locker whose options count from the acquisition.
func TestOptionsAreNotShared(t *testing.T) {
	stores(t, func(w *world) {
		rw := w.process()
		a, b := w.lock(rw.Shared()), w.lock(rw.Shared(), locker.MinHold(time.Minute))
		c := w.lock(rw.Shared())
		if a.Token() == b.Token() || b.Token() == c.Token() || a.Token() != c.Token() {
			w.Error("a call with options shares a slot, or others do not")
		}
		w.Unlock(a, b, c)
		w.refused(rw.Exclusive())
		time.Sleep(time.Minute)
		w.empty()
		for _, opt := range []locker.Option{
			locker.NoRenewal(), locker.MaxHold(time.Minute), locker.MinHold(time.Second),
		} {
			l := rwlock.New(locker.Defaults(opt)(w.Client())).Shared()
			var leases []locker.Lease
			for range 3 {
				leases = append(leases, w.lock(l))
			}
			var together [2]locker.Lease
			var all sync.WaitGroup
			for i := range together {
				all.Go(func() { together[i] = w.lock(l) })
			}
			all.Wait()
			leases = append(leases, together[:]...)
			for i, lease := range leases[1:] {
				if lease.Token() == leases[i].Token() {
					w.Errorf("lease %d shares a slot", i+1)
				}
			}
			w.Unlock(leases...)
			time.Sleep(time.Minute)
		}
		w.empty()
	})
}

// A caller that waits for another one's attempt leaves when its context ends, and goes on if that one leaves.
func TestReadersThatWaitForEachOther(t *testing.T) {
	stores(t, func(w *world) {
		written := w.lock(w.process().Exclusive())
		rw := w.process()
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(w.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				_, err := rw.Shared().Lock(ctx, key)
				var of *locker.Error
				if !errors.As(err, &of) || of.Op != "lock" || of.Key != key ||
					!errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, locker.ErrHeld) {
					w.Errorf("caller %d: %v", i, err)
				}
			})
			time.Sleep(time.Millisecond)
		}
		stays := w.waiting(rw.Shared())
		all.Wait()
		w.refused(rw.Shared())
		w.Unlock(written)
		w.Unlock(<-stays)
		w.empty()
	})
}

// If the store fails, all callers that wait for each other's attempts learn of it at once.
func TestReadersWhileTheStoreFails(t *testing.T) {
	stores(t, func(w *world) {
		rw := w.process()
		w.Calls.Fail(locker.ErrUnavailable)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				acquire := rw.Shared().Lock
				if i%2 == 0 {
					acquire = rw.Shared().TryLock
				}
				_, err := acquire(w.Context(), key)
				if !errors.Is(err, locker.ErrUnavailable) {
					w.Error(err)
				}
			})
		}
		all.Wait()
		if calls := w.Calls.Took(); calls["AcquireMany"]+calls["Acquire"] > 16 {
			w.Errorf("the store was asked %v", calls)
		}
		w.Calls.Fail(nil)
		w.Unlock(w.lock(rw.Shared()))
		w.empty()
	})
}
