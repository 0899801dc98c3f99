package single_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/semaphore"
	"github.com/golocker/locker/single"
)

// groupWorld is a simulated server with a round trip of 1 ms, which counts the commands that it executes.
type groupWorld struct {
	*testing.T
	node     *simnode.Node
	commands atomic.Int64
}

const groupTrip = time.Millisecond

func inGroupWorld(t *testing.T, f func(w *groupWorld)) {
	virtual.Test(t, func(t *testing.T) { f(&groupWorld{T: t, node: simnode.New()}) })
}

func (w *groupWorld) deliver(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) (
	[]drivers.Reply, error,
) {
	time.Sleep(groupTrip / 2)
	w.commands.Add(int64(len(cmds)))
	replies := execute()
	time.Sleep(groupTrip / 2)
	return replies, nil
}

// client returns a Client that stands for a process. If network is not nil, it is before the server.
func (w *groupWorld) client(network simnode.Network) *locker.Client {
	if network == nil {
		network = w.deliver
	}
	c := locker.NewClient(backendOf(w.node.Driver(network)))
	w.Cleanup(func() { _ = c.Close() })
	return c
}

func (w *groupWorld) lock(s *semaphore.Semaphore, opts ...locker.Option) locker.Lease {
	l, err := s.Lock(w.Context(), "k", opts...)
	if err != nil {
		panic(err) // Fatal would end one goroutine only
	}
	return l
}

func (w *groupWorld) unlock(leases ...locker.Lease) {
	for _, l := range leases {
		if err := l.Unlock(context.WithoutCancel(w.Context())); err != nil {
			w.Error(err)
		}
	}
}

func (w *groupWorld) empty() {
	w.Helper()
	if left := w.node.Left(); len(left) > 0 {
		w.Errorf("%q are left", left)
	}
}

// A semaphore on Redis of which less than two thirds are used was full once. A second later, callers wait for a round
// trip again.
func TestPermitsAfterABurst(t *testing.T) {
	for _, rate := range []int{400, 600} { // 40 % and 60 % of the permits
		inGroupWorld(t, func(w *groupWorld) {
			const n, clients, after = 50, 20, 1
			var all []*semaphore.Semaphore
			for range clients {
				all = append(all, semaphore.New(w.client(nil), n))
			}
			var longest atomic.Int64
			var calls sync.WaitGroup
			one := func(i int) {
				start := time.Now()
				p := w.lock(all[i%len(all)])
				longest.Store(max(longest.Load(), int64(time.Since(start))))
				time.Sleep(50 * time.Millisecond)
				w.unlock(p)
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
			if took := time.Duration(longest.Load()); took > 2*groupTrip {
				w.Errorf("%d callers a second, a second after the burst: one waited for %v", rate, took)
			}
			w.empty()
		})
	}
}

// One command for each permit, however many there are, and one every two seconds while a caller waits.
func TestCommandsForPermits(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		const n = semaphore.MaxPermits
		s := semaphore.New(w.client(nil), n)
		warm := w.lock(s) // the node did not know the script
		w.unlock(warm)
		w.commands.Store(0)
		var held []locker.Lease
		for range n {
			held = append(held, w.lock(s, locker.TTL(time.Hour)))
		}
		if got := w.commands.Load(); got != n {
			w.Errorf("%d commands for %d permits", got, n)
		}
		other := semaphore.New(w.client(nil), n)
		served := make(chan locker.Lease)
		go func() { served <- w.lock(other, locker.TTL(time.Hour)) }()
		time.Sleep(10 * time.Second)
		w.commands.Store(0)
		time.Sleep(100 * time.Second)
		// A request every 1.5 to 2.5 s, and a probe of the subscription every 4 s.
		if got := w.commands.Load(); got < 100/4 || got > 67+27 {
			w.Errorf("%d commands of a caller that waits for 100 s", got)
		}
		w.unlock(held[7])
		w.unlock(<-served)
		w.unlock(held[:7]...)
		w.unlock(held[8:]...)
		w.empty()
	})
}

// Whoever returns many permits hands them to all that wait, although a step looks at 64 of them only.
func TestManyWaitersForPermitsAreServedAtOnce(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		const n = 300
		s := semaphore.New(w.client(nil), n)
		all := w.lock(s.Weight(n), locker.TTL(time.Hour))
		var served sync.WaitGroup
		for range n {
			served.Go(func() {
				p := w.lock(s, locker.TTL(time.Hour))
				time.Sleep(time.Second)
				w.unlock(p)
			})
		}
		time.Sleep(time.Second)
		start := time.Now()
		w.unlock(all)
		served.Wait()
		if took := time.Since(start) - time.Second; took > 100*time.Millisecond {
			w.Errorf("the last of %d was served after %v", n, took)
		}
		w.empty()
	})
}

// What is acquired without an answer is given back, also if it is executed late.
func TestPermitsWithoutAnAnswer(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		var lose, late atomic.Bool
		faulty := func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
			switch {
			case lose.Swap(false):
				_, _ = w.deliver(ctx, cmds, execute)
				return nil, io.EOF
			case late.Swap(false):
				time.AfterFunc(30*time.Second, func() { execute() })
				return nil, io.EOF
			}
			return w.deliver(ctx, cmds, execute)
		}
		s := semaphore.New(w.client(faulty), 2)
		w.unlock(w.lock(s))
		for name, fault := range map[string]*atomic.Bool{"lost": &lose, "late": &late} {
			fault.Store(true)
			if _, err := s.TryLock(w.Context(), "k", locker.TTL(time.Hour)); !errors.Is(err, locker.ErrUnavailable) {
				w.Errorf("%s: %v", name, err)
			}
			time.Sleep(40 * time.Second)
			w.empty()
		}
		held := w.lock(s, locker.TTL(time.Hour))
		lose.Store(true)
		if err := held.Unlock(w.Context()); err != nil && !errors.Is(err, locker.ErrUnavailable) {
			w.Error(err)
		}
		time.Sleep(10 * time.Second)
		w.empty()
	})
}

// While the slot of a group migrates, permits are held and extended, and none is granted until the slot has arrived.
func TestPermitsWhileTheirSlotMigrates(t *testing.T) {
	onCluster(t, func(t *testing.T, c *redistest.Cluster, build clientBuilder) {
		if !c.Masters[0].Knows(t, "ssubscribe") {
			return // before Redis 7, or rather before 6.2, INFO does not count errors
		}
		l := semaphore.New(build(single.Timeout(time.Minute)), 3)
		key := ""
		for key == "" || c.Owner(t, c.Slot(t, single.DefaultPrefix+key)) != c.Masters[0] {
			key = "{" + backend.NewToken() + "}" // the group has the same tag
		}
		held, err := l.Lock(t.Context(), key, locker.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		m := c.Move(t, c.Slot(t, single.DefaultPrefix+key), c.Masters[1])
		extend := func(when string) {
			if err := held.Extend(t.Context()); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		extend("at first")
		for m.Key() {
		}
		extend("when the keys are at the new server")
		next, done, before := locker.Lease(nil), make(chan error, 1), refusals(t, c, "TRYAGAIN")
		go func() {
			var err error
			next, err = l.Lock(t.Context(), key, locker.TTL(time.Hour))
			done <- err
		}()
		eventually(t, 30*time.Second, "Lock is refused", func() bool { return refusals(t, c, "TRYAGAIN") > before+1 })
		select {
		case err := <-done:
			t.Errorf("Lock returned while the slot migrated: %v", err)
		default:
			m.Finish()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		unlockAll(t, held)
		unlockAll(t, next)
	})
}

// A waiter that is stopped keeps others from what it was granted for two seconds, whatever its TTL is. If it waits for
// more permits than are free, it counts as alive until its heartbeats are missed.
func TestStoppedWaiterForPermits(t *testing.T) {
	for name, tt := range map[string]struct {
		held, weight int // permits of 3: of the holder, and of the waiter that is stopped
		most         time.Duration
	}{
		"it is served":     {3, 3, 2100 * time.Millisecond},
		"it is not served": {2, 3, 6700 * time.Millisecond},
	} {
		inGroupWorld(t, func(w *groupWorld) {
			const n = 3
			stop := make(chan struct{})
			stopped := func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) (
				[]drivers.Reply, error,
			) {
				select {
				case <-stop:
					<-ctx.Done()
					return nil, ctx.Err()
				default:
					return w.deliver(ctx, cmds, execute)
				}
			}
			s := semaphore.New(w.client(nil), n)
			held := w.lock(s.Weight(tt.held), locker.TTL(time.Hour))
			ctx, die := context.WithCancel(w.Context())
			var dead sync.WaitGroup
			frozen := w.client(stopped)
			dead.Go(func() {
				if _, err := semaphore.New(frozen, n).Weight(tt.weight).Lock(ctx, "k", locker.TTL(time.Minute)); err == nil {
					w.Error("who is stopped is granted permits")
				}
			})
			time.Sleep(10 * time.Second)
			close(stop)
			synctest.Wait()
			start := time.Now()
			if tt.held == n {
				w.unlock(held)
			}
			next := w.lock(s)
			if took := time.Since(start); took > tt.most {
				w.Errorf("%s: others wait for %v", name, took)
			}
			w.unlock(next)
			if tt.held < n {
				w.unlock(held)
			}
			die()
			dead.Wait()
			time.Sleep(3 * time.Minute) // what is repeated for it ends
		})
	}
}

// Who drains is told so at once, and leaves the queue: others need not wait until it counts as dead.
func TestDrainEndsWaitsForPermits(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		const n = 2
		holder, drains := w.client(nil), w.client(nil)
		held := w.lock(semaphore.New(holder, n), locker.TTL(time.Hour))
		told := make(chan error)
		for _, weight := range []int{2, 1} {
			go func() {
				_, err := semaphore.New(drains, n).Weight(weight).Lock(w.Context(), "k", locker.TTL(time.Hour))
				told <- err
			}()
			time.Sleep(time.Second)
		}
		start := time.Now()
		go drains.Drain(w.Context())
		for range 2 {
			if err := <-told; !errors.Is(err, locker.ErrDraining) {
				w.Errorf("the waiter got %v", err)
			}
		}
		if took := time.Since(start); took > 0 {
			w.Errorf("the waiter was told after %v", took)
		}
		time.Sleep(2 * groupTrip)
		other, err := semaphore.New(holder, n).TryLock(w.Context(), "k")
		if err != nil {
			w.Fatalf("who drains is still in the queue: %v", err)
		}
		w.unlock(held, other)
		w.empty()
	})
}

// TryLock has all that is free, also if more has ended at once than a step looks at.
func TestTryLockAfterManyPermitsHaveEnded(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		const n = semaphore.MaxPermits
		s := semaphore.New(w.client(nil), n)
		for range n {
			l := w.lock(s, locker.TTL(time.Hour), locker.NoRenewal())
			defer func() { _ = l.Unlock(w.Context()) }()
		}
		time.Sleep(time.Hour)
		all, err := s.Weight(n).TryLock(w.Context(), "k")
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(all)
	})
}

// An operator names one of several owners of a group. Of one owner, or none, nothing has to be named.
func TestForceReleaseOfPermitsNeedsAnOwner(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		l := w.client(nil)
		s := semaphore.New(l, 3)
		first, second := w.lock(s, locker.TTL(time.Minute)), w.lock(s, locker.TTL(time.Hour))
		group := s.Locks("k")[0]
		force := func(owner string, want error) {
			w.Helper()
			i, err := l.ForceRelease(w.Context(), group, owner)
			if !errors.Is(err, want) || err == nil && i.Fence == 0 {
				w.Errorf("ForceRelease from %q: %+v, %v", owner, i, err)
			}
		}
		force("", locker.ErrInvalid)
		force("nobody", locker.ErrNotHeld)
		for _, held := range []locker.Lease{first, second} {
			if err := held.Extend(w.Context()); err != nil {
				w.Error(err)
			}
		}
		force(second.Token(), nil)
		force("", nil)
		force("", locker.ErrNotHeld)
		for _, held := range []locker.Lease{first, second} {
			if err := held.Extend(w.Context()); !errors.Is(err, locker.ErrLost) {
				w.Errorf("what was taken is extended: %v", err)
			}
		}
	})
}
