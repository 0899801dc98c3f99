package rwlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/rwlock"
)

// wrapping is a lease as middleware returns it.
type wrapping struct{ locker.Lease }

func (w wrapping) Unwrap() locker.Lease { return w.Lease }

// Writers become readers, and upgradeable readers become writers and readers again, among other callers of all kinds:
// nobody writes in between, and nobody waits for ever.
func TestUpgradesAndDowngradesWithoutAGap(t *testing.T) {
	stores(t, func(w *world) {
		const callers = 4
		rounds := 60
		if !w.Queues {
			rounds = 10
		}
		j := &judge{T: w.T}
		value, done := 0, make(chan struct{}) // value is guarded by the lock
		var all, others sync.WaitGroup
		for range callers {
			rw := w.process()
			all.Go(func() {
				for range rounds {
					lease := w.lock(rw.Exclusive())
					j.enter("write", lease)
					value++
					wrote := value
					reads := j.downgrade(lease)
					time.Sleep(rand.N(3 * time.Millisecond))
					if value != wrote {
						w.Errorf("written while it was downgraded")
					}
					j.leave("read")
					w.Unlock(reads)
				}
			})
			all.Go(func() {
				for range rounds {
					lease := w.lock(rw.Upgradeable())
					j.enter("upgradeable", lease)
					read := value
					time.Sleep(rand.N(3 * time.Millisecond))
					writes, err := rwlock.Upgrade(w.Context(), wrapping{lease})
					if err != nil {
						w.Fatal(err)
					}
					if value != read {
						w.Errorf("written while it was upgraded")
					}
					j.leave("upgradeable")
					j.enter("write", writes)
					value++
					if err := lease.Unlock(w.Context()); !errors.Is(err, locker.ErrUnlocked) {
						w.Errorf("the old lease: %v", err)
					}
					reads := j.downgrade(writes)
					j.leave("read")
					w.Unlock(reads)
				}
			})
			others.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(rand.N(5 * time.Millisecond)):
					}
					lease := w.lock(rw.Shared())
					j.enter("read", lease)
					time.Sleep(rand.N(3 * time.Millisecond))
					j.leave("read")
					w.Unlock(lease)
				}
			})
		}
		all.Wait()
		close(done)
		others.Wait()
		if want := 2 * callers * rounds; value != want {
			w.Errorf("%d writes, want %d", value, want)
		}
		w.empty()
	})
}

// An upgrade waits for readers and not for writers, although a writer came before it. Readers that come later wait.
func TestUpgradeWhileAWriterWaits(t *testing.T) {
	stores(t, func(w *world) {
		reads, up := w.lock(w.process().Shared()), w.lock(w.process().Upgradeable())
		writer := w.waiting(w.process().Exclusive())
		second := w.waiting(w.process().Upgradeable())
		if !w.Groups {
			w.Unlock(w.lock(w.process().Shared())) // they wait for the intent lock only
		}
		upgraded := make(chan locker.Lease)
		go func() {
			lease, err := rwlock.Upgrade(w.Context(), up)
			if err != nil {
				w.Error(err)
			}
			upgraded <- lease
		}()
		time.Sleep(time.Minute)
		w.refused(w.process().Shared())
		w.Unlock(reads)
		writes := <-upgraded
		select {
		case <-writer:
			w.Error("a writer beside an upgraded one")
		default:
		}
		w.Unlock(writes)
		for range 2 { // in either order, by polling
			select {
			case lease := <-writer:
				w.Unlock(lease)
			case lease := <-second:
				w.Unlock(lease)
			}
		}
		w.empty()
	})
}

// An upgrade that fails leaves the lease as it was. One whose lease ends meanwhile leaves nothing.
func TestUpgradeThatFails(t *testing.T) {
	stores(t, func(w *world) {
		reads, up := w.lock(w.process().Shared()), w.lock(w.process().Upgradeable())
		for range 5 {
			ctx, cancel := context.WithTimeout(w.Context(), rand.N(300*time.Millisecond))
			_, err := rwlock.Upgrade(ctx, up)
			cancel()
			var of *locker.Error
			if !errors.As(err, &of) || of.Op != "upgrade" || of.Key != key || !errors.Is(err, context.DeadlineExceeded) {
				w.Error(err)
			}
			if up.Err() != nil || up.Extend(w.Context()) != nil {
				w.Errorf("the lease of an upgrade that has failed: %v", up.Err())
			}
		}
		w.refused(w.process().Upgradeable())
		w.Unlock(w.lock(w.process().Shared()))
		if _, err := rwlock.Upgrade(w.Context(), reads); !errors.Is(err, locker.ErrInvalid) {
			w.Errorf("upgrade of a shared lease: %v", err)
		}
		if _, err := rwlock.Downgrade(w.Context(), reads); !errors.Is(err, locker.ErrInvalid) {
			w.Errorf("downgrade of a shared lease: %v", err)
		}
		for _, end := range []func() error{
			func() error { w.Unlock(up); return locker.ErrUnlocked },
			func() error {
				_, _ = w.Calls.ForceRelease(w.Context(), intent, "")
				_, _ = w.Calls.ForceRelease(w.Context(), group, up.Token())
				return locker.ErrLost
			},
		} {
			failed := make(chan error)
			go func() {
				_, err := rwlock.Upgrade(w.Context(), up)
				failed <- err
			}()
			time.Sleep(time.Second)
			start, want := time.Now(), end()
			if err := <-failed; !errors.Is(err, want) || time.Since(start) > ttl {
				w.Errorf("the lease has ended, and after %v the upgrade: %v, want %v", time.Since(start), err, want)
			}
			if _, err := rwlock.Upgrade(w.Context(), up); !errors.Is(err, want) {
				w.Errorf("the lease has ended: %v, want %v", err, want)
			}
			_ = up.Unlock(w.Context())
			up = w.lock(w.process().Upgradeable())
		}
		w.Unlock(up, reads)
		w.empty()
	})
}

// panicking is a Locker in which so many calls of Unlock panic before the lock is released: those of slots and of the
// intent lock, or those of gates.
type panicking struct {
	locker.Locker
	panics *atomic.Int64
	gates  bool
}

type panickingLease struct {
	wrapping
	of panicking
}

func (p panicking) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return p.wrap(p.Locker.Lock(ctx, key, opts...))
}

func (p panicking) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return p.wrap(p.Locker.TryLock(ctx, key, opts...))
}

func (p panicking) wrap(lease locker.Lease, err error) (locker.Lease, error) {
	if err != nil {
		return nil, err
	}
	return panickingLease{wrapping{lease}, p}, nil
}

func (p panickingLease) Unlock(ctx context.Context) error {
	if p.of.gates == (p.Key() == gate) && p.of.panics.Add(-1) >= 0 {
		panic("boom")
	}
	return p.wrapping.Unlock(ctx)
}

// ways returns how many of an upgrade and two downgrades unlock something. In a group, a downgrade does not.
func ways(w *world) int {
	if w.Groups {
		return 1
	}
	return 3
}

// An upgrade or a downgrade in which a middleware panics gives everything back: nobody has its lease. So does a call
// that has got the intent lock and no slot.
func TestPanicOfAnUpgradeOrADowngrade(t *testing.T) {
	for _, times := range []int64{1, 1000} {
		stores(t, func(w *world) {
			var panics atomic.Int64
			rw := rwlock.New(panicking{Locker: locker.Defaults(locker.TTL(ttl))(w.Client()), panics: &panics})
			boom := func(call func()) {
				panics.Store(times)
				defer func() {
					if p := recover(); p != "boom" {
						w.Errorf("the panic is %v", p)
					}
					panics.Store(0)
				}()
				call()
			}
			for _, tt := range []struct {
				from locker.Locker
				to   func(ctx context.Context, lease locker.Lease) (locker.Lease, error)
			}{
				{rw.Upgradeable(), rwlock.Upgrade}, {rw.Upgradeable(), rwlock.Downgrade}, {rw.Exclusive(), rwlock.Downgrade},
			}[:ways(w)] {
				lease := w.lock(tt.from)
				w.Settle()
				boom(func() { _, _ = tt.to(w.Context(), lease) })
				if err := lease.Unlock(w.Context()); !errors.Is(err, locker.ErrUnlocked) {
					w.Errorf("the old lease: %v", err)
				}
				w.empty()
			}
			writes := w.lock(w.process().Exclusive())
			w.Settle()
			if !w.Groups {
				boom(func() { _, _ = rw.Upgradeable().TryLock(w.Context(), key) })
			}
			w.Unlock(writes)
			w.empty()
		})
	}
}

// A middleware that panics while the gate is released in the background does not take the program: Unlock panics.
func TestPanicWhileTheGateIsReleased(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // there is no gate
			return
		}
		var panics atomic.Int64
		rw := rwlock.New(panicking{Locker: locker.Defaults(locker.TTL(ttl))(w.Client()), panics: &panics, gates: true})
		for i, l := range []locker.Locker{rw.Shared(), rw.Upgradeable(), rw.Exclusive()} {
			panics.Store(1)
			lease := w.lock(l)
			func() {
				defer func() {
					if p := recover(); p != "boom" {
						w.Errorf("%d: the panic is %v", i, p)
					}
				}()
				w.Unlock(lease)
			}()
			w.empty()
		}
	})
}

// A reader that had to wait for the gate shares a slot. If a middleware panics while the gate is released, the call
// panics, and leaves the slot to the others.
func TestPanicOfAReaderThatShares(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // there is no gate
			return
		}
		var panics atomic.Int64
		rw := rwlock.New(panicking{Locker: locker.Defaults(locker.TTL(ttl))(w.Client()), panics: &panics, gates: true})
		first := w.lock(rw.Shared())
		w.Settle()
		ctx, leave := context.WithCancel(w.Context())
		left, panicked := make(chan error), make(chan any)
		go func() {
			_, err := w.process().Exclusive().Lock(ctx, key)
			left <- err
		}()
		time.Sleep(time.Second)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = rw.Shared().Lock(w.Context(), key)
		}()
		time.Sleep(time.Second)
		panics.Store(1)
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
		if p := <-panicked; p != "boom" {
			w.Errorf("the panic is %v", p)
		}
		if err := first.Err(); err != nil {
			w.Error(err)
		}
		w.Unlock(first)
		w.empty()
	})
}

// A downgrade of a writer that has lost a slot says so, and leaves nothing.
func TestDowngradeAfterALoss(t *testing.T) {
	stores(t, func(w *world) {
		for _, wait := range []time.Duration{0, ttl} { // until the writer knows
			writes := w.lock(w.process().Exclusive())
			gone := slot(7)
			if w.Groups {
				gone = group
			} else if all, _ := locker.LeaseAs[*locker.AllLease](writes); all.FenceOf(gone) == writes.Fence() {
				gone = slot(8) // the slot with the greatest token is kept, and Downgrade does not ask for it
			}
			if _, err := w.Calls.ForceRelease(w.Context(), gone, ""); err != nil {
				w.Fatal(err)
			}
			time.Sleep(wait)
			reads, err := rwlock.Downgrade(w.Context(), writes)
			if !errors.Is(err, locker.ErrLost) || reads != nil {
				w.Errorf("%v, %v", reads, err)
			}
			_ = writes.Unlock(w.Context())
			w.empty()
		}
	})
}

// An upgradeable lease that is downgraded lets the next one in.
func TestDowngradeOfAnUpgradeable(t *testing.T) {
	stores(t, func(w *world) {
		reads, err := rwlock.Downgrade(w.Context(), w.lock(w.process().Upgradeable()))
		if err != nil {
			w.Fatal(err)
		}
		up := w.lock(w.process().Upgradeable())
		w.refused(w.process().Exclusive())
		w.Unlock(reads, up)
		w.empty()
	})
}

// Readers that share a slot have leases of their own. The slot is released when the last one unlocks, and each is told
// when it is lost.
func TestLeasesThatShareASlot(t *testing.T) {
	stores(t, func(w *world) {
		rw := w.process()
		var mu sync.Mutex
		told := 0
		ctx := lockertrace.With(w.Context(), &lockertrace.Trace{Lost: func(error) {
			mu.Lock()
			defer mu.Unlock()
			told++
		}})
		share := func() [3]locker.Lease {
			var leases [3]locker.Lease
			for i := range leases {
				lease, err := rw.Shared().Lock(ctx, key)
				if err != nil {
					w.Fatal(err)
				}
				leases[i] = lease
			}
			if leases[0].Token() != leases[2].Token() || leases[0].Fence() != leases[1].Fence() {
				w.Error("they do not share a slot")
			}
			return leases
		}
		leases := share()
		for i, l := range leases {
			done := l.Done()
			w.Unlock(l)
			<-done
			if err := l.Unlock(w.Context()); !errors.Is(err, locker.ErrUnlocked) || l.Until().After(time.Now()) {
				w.Errorf("a second Unlock: %v, valid until %v", err, l.Until())
			}
			if i < 2 {
				w.refused(w.process().Exclusive())
				if err := leases[2].Err(); err != nil {
					w.Error(err)
				}
			}
		}
		w.empty()
		leases = share()
		w.Unlock(leases[0])
		w.lose()
		for _, l := range leases[1:] {
			<-l.Done()
			if err := l.Unlock(w.Context()); !errors.Is(err, locker.ErrNotHeld) || !errors.Is(err, locker.ErrLost) {
				w.Errorf("Unlock of a lost lease: %v", err)
			}
		}
		if told != 2 && told != 3 { // the first one may be told, too: it has acquired the slot
			w.Errorf("the loss was told %d times", told)
		}
		w.empty()
	})
}

// Each reader that shares a slot is told once when it is lost, although nobody asks its lease, unless it has unlocked.
func TestReadersThatShareASlotAreToldOfItsLoss(t *testing.T) {
	stores(t, func(w *world) {
		rw := w.process()
		var told [4]atomic.Int64
		var leases [4]locker.Lease
		for i := range leases {
			ctx := lockertrace.With(w.Context(), &lockertrace.Trace{Lost: func(error) { told[i].Add(1) }})
			lease, err := rw.Shared().Lock(ctx, key)
			if err != nil {
				w.Fatal(err)
			}
			leases[i] = lease
		}
		w.Unlock(leases[2])
		w.lose()
		time.Sleep(ttl)
		for i, want := range []int64{1, 1, 0, 1} {
			if n := told[i].Load(); n != want {
				w.Errorf("reader %d was told %d times", i, n)
			}
		}
		for _, i := range []int{0, 1, 3} {
			if err := leases[i].Err(); !errors.Is(err, locker.ErrLost) || told[i].Load() != 1 {
				w.Errorf("reader %d: %v, and told %d times", i, err, told[i].Load())
			}
			_ = leases[i].Unlock(w.Context())
		}
		w.empty()
	})
}

// binding is a store in memory that records the locks to which something was bound.
type binding struct {
	*memory.Backend
	groups bool
	mu     sync.Mutex
	bound  map[string]int // how often, by name of the lock
}

func (b *binding) Capabilities() backend.Capabilities {
	can := b.Backend.Capabilities()
	can.Kinds = b.groups
	return can
}

func (b *binding) Bind(_ context.Context, req backend.Request, to any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bound[req.Key] += to.(int)
	return nil
}

// What is bound to a lease is bound once to each of its locks.
func TestBind(t *testing.T) {
	for _, groups := range []bool{false, true} {
		testBind(t, groups)
	}
}

func testBind(t *testing.T, groups bool) {
	virtual.Test(t, func(t *testing.T) {
		b := &binding{Backend: memory.NewBackend(), groups: groups, bound: map[string]int{}}
		c := locker.NewClient(b)
		rw := rwlock.New(c)
		for want, l := range map[int]locker.Locker{1: rw.Shared(), 2: rw.Upgradeable(), 64: rw.Exclusive()} {
			if b.groups {
				want = 1
			}
			clear(b.bound)
			lease, err := l.TryLock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if err := locker.Bind(t.Context(), wrapping{lease}, 1); err != nil {
				t.Error(err)
			}
			total := 0
			for _, n := range b.bound {
				total += n
			}
			if total != want || len(b.bound) != want {
				t.Errorf("bound %d times to %d locks, want %d", total, len(b.bound), want)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := locker.Bind(t.Context(), lease, 1); !errors.Is(err, locker.ErrUnlocked) {
				t.Errorf("after Unlock: %v", err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A downgrade that fails, because the intent lock is gone, gives the slot back as Unlock does: MinHold applies.
func TestDowngradeAfterALossKeepsMinHold(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // there is no intent lock
			return
		}
		lease := w.lock(w.process().Upgradeable(), locker.MinHold(time.Minute))
		time.Sleep(ttl / 5) // before the next renewal, which would notice the loss: the lease is to be unlocked then
		if _, err := w.Calls.ForceRelease(w.Context(), intent, ""); err != nil {
			w.Fatal(err)
		}
		if _, err := rwlock.Downgrade(w.Context(), lease); !errors.Is(err, locker.ErrNotHeld) {
			w.Errorf("Downgrade: %v", err)
		}
		w.refused(w.process().Exclusive())
		time.Sleep(time.Minute)
		w.empty()
	})
}

// While Close ends one lease after the other, and runs hooks, nobody gets a share of a slot.
func TestNobodySharesASlotOnceCloseHasBegun(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := locker.NewClient(memory.NewBackend())
		readers := rwlock.New(c).Shared()
		var late locker.Lease
		var err error
		trace := lockertrace.With(t.Context(), &lockertrace.Trace{
			Lost: func(error) { late, err = readers.Lock(t.Context(), key) },
		})
		if _, err := c.TryLock(trace, "another", locker.TTL(time.Second)); err != nil { // Close ends it first
			t.Fatal(err)
		}
		if _, err := readers.Lock(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if shares, err := readers.Lock(t.Context(), key); err != nil || shares.Unlock(t.Context()) != nil {
			t.Fatal(err)
		}
		if _ = c.Close(); !errors.Is(err, locker.ErrClosed) {
			t.Errorf("a reader that came when Close had begun has %v, %v", late, err)
		}
	})
}
