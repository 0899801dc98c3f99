package semaphore_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

// A free permit costs one call of the store, or two and the release of the gate.
func TestCostOfAFreePermit(t *testing.T) {
	stores(t, func(w *world) {
		s := semaphore.New(w.Client(), 3)
		p := w.lock(s)
		synctest.Wait()
		calls := w.Calls.Took()
		asked := calls["AcquireMany"] + calls["Acquire"] + calls["Queue"]
		if w.Steps {
			if asked != 1 || calls["Release"] != 0 {
				w.Errorf("%v, want one step", calls)
			}
		} else if asked != 2 || calls["Release"] != 1 {
			w.Errorf("%v, want two attempts and a release", calls)
		}
		w.Unlock(p)
		w.empty(3)
	})
}

// A caller that does not wait takes no permit while others wait at the gate and few are free, even if one is for a
// moment, because the callers that wait have to ask the store for it.
func TestFreePermitsBelongToThoseWhoWait(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Steps {
			return
		}
		for n, free := range map[int]int{3: 1, 12: 3} {
			const waiters = 9
			w.Calls.Delay(time.Millisecond)
			long := w.lock(semaphore.New(w.Client(), n).Weight(n - free))
			held := w.lock(semaphore.New(w.Client(), n).Weight(free))
			var waiting atomic.Int64
			waiting.Store(waiters)
			for range waiters {
				go func() {
					p := w.lock(semaphore.New(w.Client(), n))
					waiting.Add(-1)
					w.Unlock(p)
				}()
			}
			time.Sleep(time.Second)
			hasty := semaphore.New(w.Client(), n)
			w.Unlock(held)
			for waiting.Load() > 0 {
				lease, err := hasty.TryLock(w.Context(), key)
				if n := waiting.Load(); err == nil && n > 0 {
					w.Errorf("a permit was taken while %d others waited", n)
				}
				if err == nil {
					w.Unlock(lease)
				}
			}
			w.Unlock(long)
			w.Calls.Delay(0)
			w.empty(n)
		}
	})
}

// A semaphore of which less than a half is used was full once. The callers that wait then pass the gate one after the
// other, in three round trips each, and newcomers come faster. So they do not wait behind the gate while enough permits
// are free, and all is as before within two seconds.
func TestSemaphoreRecoversFromABurst(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Steps { // each caller needs the gate there
			return
		}
		for _, n := range []int{50, 100} {
			if took := w.burst(n, n*8, 20, 2); took > 5*trip { // 40 % of the permits
				w.Errorf("%d permits, 2s after the burst: a caller waited for %v", n, took)
			}
		}
	})
}

// trip is how long a request and its answer take in a burst.
const trip = time.Millisecond

// burst has a number of clients acquire one of n permits for 50 ms, so many times a second. After a second, four
// callers for each permit come at once. It returns the longest wait of those who come after seconds later or more, for
// as long.
func (w *world) burst(n, rate, clients, after int) time.Duration {
	w.Calls.Delay(trip / 2)
	w.Calls.Answer(trip / 2)
	var all []*semaphore.Semaphore
	for range clients {
		all = append(all, semaphore.New(w.Client(), n))
	}
	var longest atomic.Int64
	var calls sync.WaitGroup
	one := func(i int) {
		start := time.Now()
		p := w.lock(all[i%len(all)])
		longest.Store(max(longest.Load(), int64(time.Since(start))))
		time.Sleep(50 * time.Millisecond)
		w.Unlock(p)
	}
	for i := range (1 + 2*after) * rate {
		switch i {
		case rate: // the burst
			for j := range 4 * n {
				calls.Go(func() { one(j) })
			}
		case (1 + after) * rate:
			longest.Store(0)
		}
		calls.Go(func() { one(i) })
		time.Sleep(time.Second / time.Duration(rate))
	}
	calls.Wait()
	w.Calls.Delay(0)
	w.Calls.Answer(0)
	w.empty(n)
	return time.Duration(longest.Load())
}

// Newcomers that pass the gate keep nobody from many permits: the waiter for them at the front is not passed.
func TestNewcomersDoNotStarveWeights(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Steps {
			return
		}
		const n, hold = 8, 10 * time.Millisecond
		w.Calls.Delay(time.Millisecond)
		light := semaphore.New(w.Client(), n)
		done := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(3 * time.Millisecond): // of the 8 permits, some 4 are held
					all.Go(func() {
						p := w.lock(light)
						time.Sleep(hold)
						w.Unlock(p)
					})
				}
			}
		})
		for _, weight := range []int{2, 4, 6, n} {
			heavy := semaphore.New(w.Client(), n).Weight(weight)
			for range 5 {
				time.Sleep(20 * time.Millisecond)
				start := time.Now()
				w.Unlock(w.lock(heavy))
				if took := time.Since(start); took > 20*hold {
					w.Errorf("a caller with the weight %d waited for %v", weight, took)
				}
			}
		}
		close(done)
		all.Wait()
		w.Calls.Delay(0)
		w.empty(n)
	})
}

// A permit that is returned goes to the caller that waits, at once.
func TestWaitersDoNotPoll(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Queues {
			return
		}
		a, b := w.lock(semaphore.New(w.Client(), 2)), w.lock(semaphore.New(w.Client(), 2))
		served := make(chan time.Time)
		go func() {
			p := w.lock(semaphore.New(w.Client(), 2))
			served <- time.Now()
			w.Unlock(p)
		}()
		time.Sleep(time.Minute) // both holders and the gate are renewed
		start := time.Now()
		w.Unlock(b)
		if took := (<-served).Sub(start); took > 0 {
			w.Errorf("served %v after the permit was returned", took)
		}
		w.Unlock(a)
		w.empty(2)
	})
}

// A caller that loses the gate before it has all its permits gives everything back, and waits again.
func TestLostGate(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // there is no gate
			return
		}
		const n = 2
		p := w.lock(semaphore.New(w.Client(), n))
		served := make(chan *semaphore.Permit)
		go func() { served <- w.lock(semaphore.New(w.Client(), n).Weight(n)) }()
		time.Sleep(time.Second)
		// An operator takes the gate away, and another program has it for a while.
		gate := "{" + key + "}#gate"
		if _, err := w.Calls.ForceRelease(w.Context(), gate, ""); err != nil {
			w.Fatal(err)
		}
		other, err := w.Client().Lock(w.Context(), gate)
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(ttl) // the waiter learns of it by a renewal
		free := w.freeSlot(n)
		w.Unlock(free)
		w.Unlock(other)
		w.Unlock(p)
		w.Unlock(<-served)
		w.empty(n)
	})
}

// freeSlot acquires a permit although somebody has the gate.
func (w *world) freeSlot(n int) locker.Lease {
	w.Helper()
	for i := range n {
		lease, err := w.Client().TryLock(w.Context(), "{"+key+"}#"+string(rune('0'+i)))
		if err == nil {
			return lease
		}
	}
	w.Fatal("a permit is held by a caller that has lost the gate")
	return nil
}

// A gate is held while its holder waits, whatever the options of the permit say. So the callers ask the store once.
func TestGateOfCallersWithoutRenewal(t *testing.T) {
	stores(t, func(w *world) {
		if !w.Queues {
			return
		}
		for _, opt := range []locker.Option{locker.NoRenewal(), locker.MaxHold(time.Second)} {
			p := w.lock(semaphore.New(w.Client(), 1))
			w.Calls.Took()
			var all sync.WaitGroup
			for range 2 {
				l := locker.Defaults(opt)(w.Client())
				all.Go(func() { w.Unlock(w.lock(semaphore.New(l, 1))) })
			}
			time.Sleep(time.Minute)
			if calls := w.Calls.Took(); calls["Queue"] > 3 {
				w.Errorf("%d requests to wait for the gate and for a permit, want 3", calls["Queue"])
			}
			w.Unlock(p)
			all.Wait()
			synctest.Wait()
			w.empty(1)
		}
	})
}

// MinHold applies to the permit, and neither to the gate nor to what a caller was granted and does not need.
func TestMinHoldOfAPermit(t *testing.T) {
	stores(t, func(w *world) {
		const n = 2
		held := w.lock(semaphore.New(w.Client(), n).Weight(n))
		var all sync.WaitGroup
		for _, d := range []time.Duration{time.Hour, 0} {
			all.Go(func() { w.Unlock(w.lock(semaphore.New(w.Client(), n), locker.MinHold(d))) })
			time.Sleep(time.Second)
		}
		w.Unlock(held)
		start := time.Now()
		all.Wait()
		if took := time.Since(start); took > time.Second {
			w.Errorf("served after %v", took)
		}
		time.Sleep(time.Second)
		w.Unlock(w.lock(semaphore.New(w.Client(), n)))
	})
}

// A hook that panics takes nothing with it.
func TestPanicOfAHook(t *testing.T) {
	stores(t, func(w *world) {
		p := w.lock(semaphore.New(w.Client(), 2).Weight(2))
		boom := func(lockertrace.Waiting) { panic("boom") }
		ctx := lockertrace.With(w.Context(), &lockertrace.Trace{Waiting: boom})
		func() {
			defer func() {
				if recover() != "boom" {
					w.Error("the panic is gone")
				}
			}()
			_, _ = semaphore.New(w.Client(), 2).Lock(ctx, key)
		}()
		w.Unlock(p)
		w.empty(2)
	})
}

// A hook that ends its goroutine, as FailNow of a test does, ends the call, and takes nothing with it.
func TestHookThatEndsItsGoroutine(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // the goroutine is that of the caller
			return
		}
		p := w.lock(semaphore.New(w.Client(), 2).Weight(2))
		synctest.Wait() // the gate is free, so only requests for permits wait, which have goroutines of their own
		ctx := lockertrace.With(w.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { runtime.Goexit() }})
		if _, err := semaphore.New(w.Client(), 2).Lock(ctx, key); err == nil || !strings.Contains(err.Error(), "goroutine") {
			w.Errorf("Lock: %v", err)
		}
		w.Unlock(p)
		w.empty(2)
	})
}

// A step looks at a part of many permits. TryLock finds the free one in the other part, too.
func TestTryLockFindsTheFreePermitAmongMany(t *testing.T) {
	stores(t, func(w *world) {
		s := semaphore.New(w.Client(), 100)
		for range 100 {
			lease, err := s.TryLock(w.Context(), key)
			if err != nil {
				w.Fatal(err)
			}
			defer w.Unlock(lease)
		}
		if _, err := s.TryLock(w.Context(), key); !errors.Is(err, locker.ErrHeld) {
			w.Errorf("no permit is free: %v", err)
		}
	})
}

// Wrong numbers are errors that say so.
func TestInvalidLimits(t *testing.T) {
	stores(t, func(w *world) {
		c := w.Client()
		for _, s := range []*semaphore.Semaphore{
			semaphore.New(c, 0), semaphore.New(c, -1), semaphore.New(c, semaphore.MaxPermits+1),
			semaphore.New(c, 2).Weight(3), semaphore.New(c, 2).Weight(0),
		} {
			_, err := s.Lock(w.Context(), key)
			_, try := s.TryLock(w.Context(), key)
			if !errors.Is(err, locker.ErrInvalid) || !errors.Is(try, locker.ErrInvalid) {
				w.Errorf("%+v: %v, %v", s, err, try)
			}
		}
		if _, err := semaphore.New(c, 1).Lock(w.Context(), ""); !errors.Is(err, locker.ErrInvalid) {
			w.Errorf("an empty key: %v", err)
		}
	})
}

// A holder whose context carries its permit gets another one, but does not wait for its own.
func TestHolderThatAsksAgain(t *testing.T) {
	stores(t, func(w *world) {
		s := semaphore.New(w.Client(), 2)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		err := locker.Do(ctx, s, key, func(ctx context.Context) error {
			return locker.Do(ctx, s, key, func(ctx context.Context) error {
				start := time.Now()
				if _, err := s.Lock(ctx, key); !errors.Is(err, locker.ErrReentrant) || time.Since(start) > 10*time.Millisecond {
					w.Errorf("a third permit of two: %v after %v", err, time.Since(start))
				}
				return nil
			})
		})
		if err != nil {
			w.Error(err)
		}
		w.empty(2)
	})
}

// tenant is a middleware that changes keys.
type tenant struct {
	locker.Locker
	name, version string
}

func (n tenant) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return n.Locker.Lock(ctx, n.name+key+n.version, opts...)
}

func (n tenant) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return n.Locker.TryLock(ctx, n.name+key+n.version, opts...)
}

// A holder that asks again does not wait for the gate behind a caller that waits for its permits.
func TestHolderThatAsksAgainWhileOthersWait(t *testing.T) {
	const n = 3
	stores(t, func(w *world) {
		for _, wrap := range []locker.Middleware{
			func(l locker.Locker) locker.Locker { return l },
			func(l locker.Locker) locker.Locker { return tenant{l, "a:", ":v2"} },
			locker.Defaults(locker.NoRenewal()), // each call makes another Locker
		} {
			for held := 1; held <= n; held++ {
				c, got := w.Client(), make(chan *semaphore.Permit)
				err := locker.Do(w.Context(), semaphore.New(wrap(c), n).Weight(held), key, func(ctx context.Context) error {
					go func() { got <- w.lock(semaphore.New(wrap(w.Client()), n).Weight(n - held + 1)) }()
					time.Sleep(time.Second)
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					start := time.Now()
					_, err := semaphore.New(wrap(c), n).Weight(n-held+1).Lock(ctx, key)
					if !errors.Is(err, locker.ErrReentrant) || time.Since(start) > 10*time.Millisecond {
						w.Errorf("who has %d of %d permits: %v after %v", held, n, err, time.Since(start))
					}
					return nil
				}, locker.TTL(time.Hour))
				if err != nil {
					w.Error(err)
				}
				w.Unlock(<-got)
			}
		}
		w.empty(n)
	})
}

// A holder waits for permits of others, also if its context carries as many permits of other keys or of the same one.
func TestHolderThatWaitsForPermitsOfOthers(t *testing.T) {
	const n = 3
	stores(t, func(w *world) {
		c := w.Client()
		b := semaphore.New(tenant{c, "b:", ""}, n)
		err := locker.Do(w.Context(), semaphore.New(tenant{c, "a:", ""}, n).Weight(n), key, func(ctx context.Context) error {
			return locker.Do(ctx, b, key, func(ctx context.Context) error {
				others := w.lock(semaphore.New(tenant{w.Client(), "b:", ""}, n).Weight(n - 1))
				time.AfterFunc(time.Second, func() { w.Unlock(others) })
				lease, err := b.Weight(n-1).Lock(ctx, key)
				if err == nil {
					w.Unlock(lease)
				}
				return err
			})
		})
		if err != nil {
			w.Error(err)
		}
	})
}

// A key has several holders, so nobody is shown as the one. Its locks are for operators.
func TestSemaphoreCannotBeInspectedAsALock(t *testing.T) {
	stores(t, func(w *world) {
		s := semaphore.New(w.Client(), 2)
		i, ok := locker.As[inspect.Inspector](s)
		if !ok {
			w.Fatal("the Locker below is inspected instead")
		}
		_, err := i.Inspect(w.Context(), key)
		_, force := i.ForceRelease(w.Context(), key, "")
		if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(force, errors.ErrUnsupported) {
			w.Errorf("%v, %v", err, force)
		}
		want := []string{"{exports}#0", "{exports}#1", "{exports}#gate"}
		if w.Groups {
			want = []string{"{exports}#permits"}
		}
		if got := s.Locks(key); !slices.Equal(got, want) {
			w.Errorf("locks %q, want %q", got, want)
		}
	})
}

// No two keys have a lock in common, and all locks of a key have one hash slot, whatever braces the key has.
func TestNamesOfLocks(t *testing.T) {
	group := memory.New()
	defer group.Close()
	used := map[string]string{}
	for _, key := range []string{
		"a", "{a}", "{a}#", "{a}##", "a#", "{a", "a}", "{}a", "{{a}}", "{a}b", "b{a}", "{a}#0", "{a}##0", "a#0",
		"}a", "}", "}}", "}{", "}{}", "}#", "}{a}", "#}a", "{#}", "{#}}a", "{#}}a#", "{#}}a##", "{#}}a##:0", "{}}a",
	} {
		slots := map[uint16]bool{}
		for _, name := range append(semaphore.New(nil, 3).Locks(key), semaphore.New(group, 3).Locks(key)...) {
			if other, ok := used[name]; ok {
				t.Errorf("%q and %q both have the lock %q", key, other, name)
			}
			used[name] = key
			slots[script.Slot("lock:"+name)] = true
		}
		if len(slots) != 1 {
			t.Errorf("the locks of %q have %d hash slots", key, len(slots))
		}
	}
}

// An election over a semaphore has several leaders.
func TestElectionWithSeveralLeaders(t *testing.T) {
	stores(t, func(w *world) {
		const n = 2
		var leaders, most atomic.Int64
		ctx, cancel := context.WithCancel(w.Context())
		var all sync.WaitGroup
		for range 2 * n {
			s := semaphore.New(w.Client(), n)
			all.Go(func() {
				err := election.Run(ctx, s, key, election.Config{
					OnElected: func(ctx context.Context, _ election.Term) error {
						most.Store(max(most.Load(), leaders.Add(1)))
						<-ctx.Done()
						leaders.Add(-1)
						return nil
					},
					OnError: func(err error) { w.Error(err) },
				})
				if err != nil {
					w.Error(err)
				}
			})
		}
		time.Sleep(time.Minute)
		if leaders.Load() != n || most.Load() != n {
			w.Errorf("%d leaders, at most %d at a time, want %d", leaders.Load(), most.Load(), n)
		}
		cancel()
		all.Wait()
		w.empty(n)
	})
}

// A caller that waits for a permit waits for all of them, so all holders learn of it.
func TestHoldersLearnThatAPermitIsWanted(t *testing.T) {
	stores(t, func(w *world) {
		const n = 3
		own := semaphore.New(w.Client(), n)
		waiter := own // which every store tells of
		if w.Tells {
			waiter = semaphore.New(w.Client(), n)
		}
		one, two := w.lock(own), w.lock(own.Weight(2))
		synctest.Wait() // the second caller may have asked for the permit of the first one, too
		holders := []<-chan struct{}{locker.Wanted(one), locker.Wanted(two)}
		wanted := func(want bool) {
			w.Helper()
			synctest.Wait()
			for i, told := range holders {
				select {
				case <-told:
					if !want {
						w.Errorf("holder %d is wanted", i)
					}
				default:
					if want {
						w.Errorf("holder %d is not wanted", i)
					}
				}
			}
		}
		wanted(false)
		got := make(chan *semaphore.Permit)
		go func() { got <- w.lock(waiter) }()
		wanted(true)
		w.Unlock(one)
		third := <-got
		holders = []<-chan struct{}{locker.Wanted(third)}
		wanted(false)
		w.Unlock(third)
		w.Unlock(two)
		w.empty(n)
	})
}

// The numbers of several permits are in order, whatever the order in which they were granted.
func TestSlotsAreInOrder(t *testing.T) {
	stores(t, func(w *world) {
		const n = 8
		for range 10 {
			p := w.lock(semaphore.New(w.Client(), n).Weight(n - 1))
			if !slices.IsSorted(p.Slots()) || p.Slot() != p.Slots()[0] {
				w.Errorf("slots %v, the first of which is %d", p.Slots(), p.Slot())
			}
			w.Unlock(p)
		}
	})
}

// When Unlock has returned, nothing of the call goes on in the background: the gate is open, and no other permit is
// waited for.
func TestUnlockLeavesNothingInTheBackground(t *testing.T) {
	stores(t, func(w *world) {
		const n = 3
		s := semaphore.New(w.Client(), n)
		held := w.lock(s.Weight(n))
		got := make(chan *semaphore.Permit)
		go func() { got <- w.lock(semaphore.New(w.Client(), n)) }()
		time.Sleep(time.Second)
		w.Calls.Delay(10 * time.Millisecond)
		w.Unlock(held)
		p := <-got
		synctest.Wait() // the gate is being released
		w.Calls.Delay(0)
		w.Unlock(p)
		if !w.Groups {
			w.Free(s.Locks(key)...)
			return
		}
		if seen, err := w.Client().Inspect(t.Context(), s.Locks(key)[0]); err != nil || seen.State != inspect.Free {
			t.Errorf("%s, %v", seen.State, err)
		}
	})
}

// losing is a Locker that does something before it returns a lease.
type losing struct {
	locker.Locker
	before func(key string)
}

func (l losing) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := l.Locker.Lock(ctx, key, opts...)
	if err == nil {
		l.before(key)
	}
	return lease, err
}

// A permit that is lost while the last one is granted is not returned: the call begins anew.
func TestLossBeforeTheCallReturns(t *testing.T) {
	stores(t, func(w *world) {
		if w.Steps {
			return
		}
		var once sync.Once
		l := losing{w.Client(), func(lock string) {
			if lock != "{"+key+"}#1" {
				return
			}
			once.Do(func() {
				time.Sleep(time.Second) // the other permit is granted
				if _, err := w.Calls.ForceRelease(w.Context(), "{"+key+"}#0", ""); err != nil {
					w.Error(err)
				}
				time.Sleep(ttl) // and its loss is known
			})
		}}
		p := w.lock(semaphore.New(l, 2).Weight(2))
		if err := p.Err(); err != nil {
			w.Errorf("Lock has returned a lease that is lost: %v", err)
		}
		w.Unlock(p)
		w.empty(2)
	})
}

// leaving is a Locker whose caller leaves when an attempt has been answered.
type leaving struct {
	locker.Locker
	leave func()
}

func (l leaving) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	defer l.leave()
	return l.Locker.TryLock(ctx, key, opts...)
}

func (l leaving) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	leases, err := locker.TryLockMany(ctx, l.Locker, m, opts...)
	if errors.Is(err, locker.ErrHeld) {
		l.leave()
	}
	return leases, err
}

// A context that ends between the answer and the end of the call is in the error, too.
func TestContextThatEndsWithTheAnswer(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // the call is that of the Client
			return
		}
		p := w.lock(semaphore.New(w.Client(), 2).Weight(2))
		ctx, cancel := context.WithCancel(w.Context())
		_, err := semaphore.New(leaving{w.Client(), cancel}, 2).Lock(ctx, key, locker.TTL(ttl))
		if !errors.Is(err, context.Canceled) || !errors.Is(err, locker.ErrHeld) {
			t.Errorf("Lock: %v, want an error that matches ErrHeld and the end of the context", err)
		}
		w.Unlock(p)
		w.empty(2)
	})
}

// slow is a Locker that returns a lease late, and knows whether somebody has left meanwhile.
type slow struct {
	locker.Locker
	left *atomic.Bool
}

func (l slow) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := l.Locker.TryLock(ctx, key, opts...)
	if err == nil {
		time.Sleep(time.Second)
		l.left.Store(l.left.Load() || ctx.Err() != nil)
	}
	return lease, err
}

// If one of several permits is refused, the requests for the others are not given up: a store undoes those late.
func TestRefusedTryLockAwaitsAllAnswers(t *testing.T) {
	stores(t, func(w *world) {
		p := w.lock(semaphore.New(w.Client(), 3))
		var left atomic.Bool
		_, err := semaphore.New(slow{w.Client(), &left}, 3).Weight(3).TryLock(w.Context(), key)
		if !errors.Is(err, locker.ErrHeld) || left.Load() {
			t.Errorf("TryLock: %v, a request was given up: %v", err, left.Load())
		}
		w.Unlock(p)
		w.empty(3)
	})
}

// Errors name the key that the caller knows.
func TestErrorsNameTheKey(t *testing.T) {
	stores(t, func(w *world) {
		p := w.lock(semaphore.New(w.Client(), 2))
		w.Unlock(p)
		for op, err := range map[string]error{"unlock": p.Unlock(w.Context()), "extend": p.Extend(w.Context())} {
			var of *locker.Error
			if !errors.As(err, &of) || of.Key != key || of.Op != op || !errors.Is(err, locker.ErrUnlocked) {
				w.Errorf("%s: %v", op, err)
			}
		}
	})
}

func TestExtendWithATTL(t *testing.T) {
	stores(t, func(w *world) {
		p := w.lock(semaphore.New(w.Client(), 3).Weight(2))
		err := p.Extend(w.Context(), locker.TTL(time.Hour))
		if valid := time.Until(p.Until()); err != nil || valid < 59*time.Minute {
			w.Errorf("%v, valid for %v", err, valid)
		}
		w.Unlock(p)
	})
}
