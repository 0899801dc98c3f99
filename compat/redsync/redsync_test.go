package redsync_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/redsync"
	"github.com/golocker/locker/compat/redsync/redis/goredis/v9"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/redlock"
)

// want fails the test unless ok is as wanted, and err matches all errors.
func want(t *testing.T, ok, wanted bool, err error, matches ...error) {
	t.Helper()
	if ok != wanted || (err == nil) != (len(matches) == 0) {
		t.Errorf("%v, %v; want %v, and the error has to match %v", ok, err, wanted, matches)
	}
	for _, target := range matches {
		if !errors.Is(err, target) {
			t.Errorf("%v does not match %v", err, target)
		}
	}
}

// takenOn fails the test unless err is an ErrTaken that names most of these servers, and no other one.
func takenOn(t *testing.T, err error, nodes ...int) {
	t.Helper()
	var taken *redsync.ErrTaken
	if !errors.As(err, &taken) || 2*len(taken.Nodes) <= len(nodes) ||
		slices.ContainsFunc(taken.Nodes, func(i int) bool { return !slices.Contains(nodes, i) }) {
		t.Errorf("%v, want an ErrTaken of the nodes %d", err, nodes)
	}
}

// taken fails the test unless err is an ErrTaken, or has one.
func taken(t *testing.T, err error) {
	t.Helper()
	if !errors.As(err, new(*redsync.ErrTaken)) {
		t.Errorf("%v, want an ErrTaken", err)
	}
}

func TestMutexesOfManyCallersExcludeEachOther(t *testing.T) {
	on(t, func(d *deployment) {
		const callers, times = 6, 5
		var inside atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			m := d.mutex()
			wg.Go(func() {
				for range times {
					if err := m.Lock(); err != nil {
						d.Error(err)
						return
					}
					if n := inside.Add(1); n != 1 {
						d.Errorf("%d callers have the lock", n)
					}
					inside.Add(-1)
					ok, err := m.Unlock()
					want(d.T, ok, true, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestTryLockOfALockThatIsTaken(t *testing.T) {
	on(t, func(d *deployment) {
		first := d.locked()
		err := d.mutex().TryLock()
		taken(d.T, err)
		var held *locker.HeldError
		if !errors.As(err, &held) || held.Label == "" {
			d.Errorf("%v does not name the holder", err)
		}
		if err := d.mutex(redsync.WithTries(1)).Lock(); !errors.Is(err, locker.ErrHeld) {
			d.Errorf("Lock with one try: %v", err)
		}
		if _, direct := err.(*redsync.ErrTaken); !direct {
			d.Errorf("%T, want an *ErrTaken that a type switch finds", err)
		}
		ok, err := first.Unlock()
		want(d.T, ok, true, err)
		if err := d.mutex().TryLock(); err != nil {
			d.Error(err)
		}
	})
}

// The delay is longer than the test may take, so the waiter is told by the release.
func TestWaiterIsToldByTheRelease(t *testing.T) {
	on(t, func(d *deployment) {
		first, second := d.locked(), d.mutex(redsync.WithRetryDelay(time.Hour), redsync.WithTries(2))
		ctx, waits := waiting(d.Context())
		got := make(chan error, 1)
		go func() { got <- second.LockContext(ctx) }()
		<-waits
		ok, err := first.Unlock()
		want(d.T, ok, true, err)
		if err := <-got; err != nil {
			d.Error(err)
		}
	})
}

// The delay is longer than the test may take, so the waiter notices in the queue that a program that has not moved has
// released the lock. Such a program compares the value, which must be as it was.
func TestWaiterBehindAProgramThatHasNotMoved(t *testing.T) {
	on(t, func(d *deployment) {
		const key, value = "orders:42", "c29tZWJvZHkncyB2YWx1ZQ=="
		const release = `return redis.call("GET", KEYS[1]) == ARGV[1] and redis.call("DEL", KEYS[1])`
		d.cmd("SET", key, value, "NX", "PX", 600000)
		m := d.mutex(redsync.WithRetryDelay(time.Hour), redsync.WithTries(2))
		ctx, waits := waiting(d.Context())
		got := make(chan error, 1)
		go func() { got <- m.LockContext(ctx) }()
		<-waits
		for _, s := range d.servers {
			if deleted := s.Cmd(d, "EVAL", release, 1, key, value); deleted != int64(1) {
				d.Errorf("the release answers %v", deleted)
			}
		}
		if err := <-got; err != nil {
			d.Error(err)
		}
		ok, err := m.Valid()
		want(d.T, ok, true, err)
	})
}

// waiting returns a context, and a channel that is closed when a call with it waits.
func waiting(ctx context.Context) (context.Context, <-chan struct{}) {
	waits := make(chan struct{})
	return lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { close(waits) }}), waits
}

func TestTriesEnd(t *testing.T) {
	on(t, func(d *deployment) {
		d.locked()
		delays := 0
		err := d.mutex(redsync.WithTries(4), redsync.WithRetryDelayFunc(func(tries int) time.Duration {
			if delays++; tries != delays {
				d.Errorf("delay %d after %d tries", delays, tries)
			}
			return time.Millisecond
		})).Lock()
		taken(d.T, err)
		if delays != 3 {
			d.Errorf("%d delays between four tries", delays)
		}
		want(d.T, true, true, d.mutex(redsync.WithTries(0)).Lock(), redsync.ErrFailed)
	})
}

func TestContextEndsLock(t *testing.T) {
	on(t, func(d *deployment) {
		d.locked()
		second := d.mutex()
		ctx, cancel := context.WithCancel(d.Context())
		defer cancel()
		ctx, waits := waiting(ctx)
		got := make(chan error, 1)
		go func() { got <- second.LockContext(ctx) }()
		<-waits
		cancel()
		if err := <-got; err != redsync.ErrFailed {
			d.Errorf("%v, want ErrFailed", err)
		}
	})
}

func TestExtendSetsTheWholeExpiry(t *testing.T) {
	on(t, func(d *deployment) {
		m := d.locked()
		d.cmd("PEXPIRE", m.Name(), time.Minute.Milliseconds()) // as if an hour were nearly over
		was := m.Until()
		ok, err := m.Extend()
		want(d.T, ok, true, err)
		extended := 0
		for _, s := range d.servers {
			if s.PTTL(d, m.Name()) > 30*time.Minute {
				extended++
			}
		}
		if extended <= len(d.servers)/2 || !m.Until().After(was) {
			d.Errorf("extended on %d servers, until %v later", extended, m.Until().Sub(was))
		}
	})
}

func TestLockIsNotRenewedByItself(t *testing.T) {
	on(t, func(d *deployment) {
		m := d.expired()
		ok, err := m.Extend()
		want(d.T, ok, false, err, redsync.ErrExtendFailed, locker.ErrLost)
		taken(d.T, err)
		if m.Until().After(time.Now()) {
			d.Errorf("valid until %v", m.Until())
		}
	})
}

func TestExtendAcquiresAgainWithSetNX(t *testing.T) {
	on(t, func(d *deployment) {
		m := d.expired(redsync.WithSetNXOnExtend())
		was := m.Value()
		for ok := false; !ok; { // the machine may stand still for longer than the lock lasts
			ok, _ = m.Extend()
		}
		if m.Value() == was {
			d.Error("the new lock has the old value")
		}
		<-m.Lease().Done()
		d.cmd("DEL", m.Name())
		other := d.locked()
		ok, err := m.Extend()
		for errors.Is(err, locker.ErrUnavailable) { // the machine has stood still
			ok, err = m.Extend()
		}
		want(d.T, ok, false, err, locker.ErrHeld)
		taken(d.T, err)
		if valid, err := other.Valid(); !valid {
			d.Error(err)
		}
	})
}

func TestUnlockOfALockThatIsOver(t *testing.T) {
	on(t, func(d *deployment) {
		m := d.expired()
		ok, err := m.Unlock()
		want(d.T, ok, false, err, redsync.ErrLockAlreadyExpired, locker.ErrLost)
		m = d.locked()
		ok, err = m.Unlock()
		want(d.T, ok, true, err)
		ok, err = m.Unlock()
		want(d.T, ok, false, err, redsync.ErrLockAlreadyExpired)
		ok, err = d.mutex().Unlock()
		want(d.T, ok, false, err, redsync.ErrLockAlreadyExpired)
	})
}

func TestUnlockSparesTheSuccessor(t *testing.T) {
	on(t, func(d *deployment) {
		m := d.expired()
		other := d.locked()
		ok, err := m.Unlock()
		want(d.T, ok, false, err, locker.ErrNotHeld)
		taken(d.T, err)
		if valid, err := other.Valid(); !valid {
			d.Error(err)
		}
	})
}

func TestUnlockWorksAfterTheContext(t *testing.T) {
	on(t, func(d *deployment) {
		ctx, cancel := context.WithCancel(d.Context())
		cancel()
		ok, err := d.locked().UnlockContext(ctx)
		want(d.T, ok, true, err)
		ok, err = d.locked().UnlockContext(nil) //nolint:staticcheck // as with go-redsync
		want(d.T, ok, true, err)
	})
}

// Some servers have something else under the key. The lock is granted if more servers are free than not.
func TestMajorityDecides(t *testing.T) {
	on(t, func(d *deployment) {
		for mask := range 1 << len(d.servers) {
			d.cmd("DEL", "orders:42")
			var foreign []int
			for i, s := range d.servers {
				if mask&(1<<i) != 0 {
					s.Cmd(d, "SET", "orders:42", "maintenance")
					foreign = append(foreign, i)
				}
			}
			m := d.mutex()
			err := m.TryLock()
			if 2*len(foreign) < len(d.servers) {
				if err != nil {
					d.Errorf("%d foreign: %v", foreign, err)
				} else {
					ok, err := m.Unlock()
					want(d.T, ok, true, err)
				}
				continue
			}
			takenOn(d.T, err, foreign...)
			if !errors.Is(err, locker.ErrForeignKey) {
				d.Errorf("%d foreign: %v", foreign, err)
			}
		}
	})
}

func TestServersThatAreDown(t *testing.T) {
	on(t, func(d *deployment) {
		quorum := len(d.servers)/2 + 1
		m := d.mutex()
		for _, s := range d.servers[quorum:] {
			s.Kill()
		}
		if err := m.TryLock(); err != nil {
			d.Fatal(err)
		}
		d.servers[0].Kill()
		ok, err := m.Extend()
		want(d.T, ok, false, err, locker.ErrUnavailable)
		// The server that has the lock may answer before one that is down has refused. The lock is held then, or the
		// first error is that of another server.
		var down *redsync.RedisError
		told := func() bool { return errors.As(err, &down) && down.Node == 0 }
		for end := time.Now().Add(10 * time.Second); !told() && time.Now().Before(end); {
			err = d.mutex(redsync.WithTries(3), redsync.WithRetryDelay(time.Millisecond)).Lock()
		}
		if !told() || !errors.Is(err, locker.ErrUnavailable) {
			d.Errorf("%v, want a RedisError of node 0", err)
		}
		if len(d.servers) > 1 && (!errors.Is(err, locker.ErrNoQuorum) || !errors.As(err, new(*redlock.QuorumError))) {
			d.Errorf("%v, want the votes", err)
		}
		d.servers[0].Restart() // and forgets
		for _, s := range d.servers[quorum:] {
			s.Restart()
		}
		_, _ = m.Unlock() // the extension may have reached a majority after all, once the servers were there
		if err := m.Lock(); err != nil {
			d.Errorf("after the restart: %v", err)
		}
	})
}

func TestValidAsksTheServers(t *testing.T) {
	on(t, func(d *deployment) {
		m := d.locked()
		ok, err := m.Valid()
		want(d.T, ok, true, err)
		d.cmd("DEL", m.Name())
		ok, err = m.Valid()
		want(d.T, ok, false, err, locker.ErrLost)
		taken(d.T, err)
		ok, err = d.mutex().Valid()
		want(d.T, ok, false, err, locker.ErrNotHeld)
	})
}

// A lock is unlocked elsewhere, by its value alone.
func TestValueUnlocksElsewhere(t *testing.T) {
	on(t, func(d *deployment) {
		m := d.locked()
		for _, part := range []string{m.Value()[:8], m.Value()[:24], m.Value() + "x"} {
			wrong := d.mutex(redsync.WithValue(part))
			ok, err := wrong.Unlock()
			want(d.T, ok, false, err, locker.ErrNotHeld)
			ok, err = wrong.Valid()
			want(d.T, ok, false, err, locker.ErrNotHeld)
		}
		there := d.mutex(redsync.WithValue(m.Value()))
		if there.Value() != m.Value() || !there.Until().IsZero() {
			d.Errorf("%q until %v", there.Value(), there.Until())
		}
		ok, err := there.Valid()
		want(d.T, ok, true, err)
		ok, err = there.Extend()
		want(d.T, ok, false, err, errors.ErrUnsupported)
		ok, err = there.Unlock()
		want(d.T, ok, true, err)
		ok, err = there.Unlock()
		want(d.T, ok, false, err, redsync.ErrLockAlreadyExpired)
		ok, err = m.Extend()
		want(d.T, ok, false, err, redsync.ErrExtendFailed)
		d.locked()
		ok, err = there.Unlock()
		want(d.T, ok, false, err, locker.ErrNotHeld)
		taken(d.T, err)
	})
}

// Each acquisition has a value of its own, and a greater token, even if the process hands the lock over to itself.
func TestValuesDiffer(t *testing.T) {
	on(t, func(d *deployment) {
		rs := d.redsync()
		seen, fence := map[string]bool{}, uint64(0)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				m := rs.NewMutex("k", long...)
				for range 4 {
					if err := m.Lock(); err != nil {
						d.Error(err)
						return
					}
					mu.Lock()
					if f := m.Lease().Fence(); seen[m.Value()] || f <= fence {
						d.Errorf("value %q, token %d after %d", m.Value(), f, fence)
					}
					seen[m.Value()], fence = true, m.Lease().Fence()
					mu.Unlock()
					_, _ = m.Unlock()
				}
			})
		}
		wg.Wait()
	})
}

func TestOptions(t *testing.T) {
	d := deploy(t, 1, clients["goredis"])
	m := d.locked(redsync.WithDriftFactor(0.5), redsync.WithFailFast(true), redsync.WithShufflePools(true))
	if left := time.Until(m.Until()); left > 31*time.Minute {
		t.Errorf("valid for %v of an hour, half of which is for the drift", left)
	}
	if m.Name() != "orders:42" {
		t.Errorf("the name is %q", m.Name())
	}
	if err := d.mutex(redsync.WithDriftFactor(2), redsync.OptionFunc(func(*redsync.Mutex) {})).TryLock(); err == nil {
		t.Error("a lock that is over at once")
	}
	for _, expiry := range []time.Duration{0, time.Millisecond, 25 * time.Hour} {
		err := d.mutex(redsync.WithExpiry(expiry), redsync.WithTimeoutFactor(2)).Lock()
		if !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("an expiry of %v: %v", expiry, err)
		}
	}
	err := d.mutex(redsync.WithTimeoutFactor(0), redsync.WithTries(2)).Lock()
	if !errors.As(err, new(*redsync.RedisError)) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("attempts that may not take any time: %v", err)
	}
}

func TestPoolsThatCannotBeUsed(t *testing.T) {
	if err := redsync.New().NewMutex("k").Lock(); !errors.Is(err, locker.ErrInvalid) {
		t.Errorf("no pools: %v", err)
	}
	ring := goredislib.NewRing(&goredislib.RingOptions{Addrs: map[string]string{"a": "localhost:1"}})
	defer func() { _ = ring.Close() }()
	rs := redsync.New(goredis.NewPool(ring))
	defer func() { _ = rs.Locker().Close() }()
	err := rs.NewMutex("k", redsync.WithTries(1)).Lock()
	if err == nil || !strings.Contains(err.Error(), "redis.Ring") {
		t.Errorf("a ring: %v", err)
	}
}

// Programs wrap a client to add methods of their own.
func TestPoolOfATypeThatEmbedsAClient(t *testing.T) {
	client := goredislib.NewClient(&goredislib.Options{Addr: redistest.Start(t).Addr()})
	defer func() { _ = client.Close() }()
	rs := redsync.New(goredis.NewPool(&struct{ *goredislib.Client }{client}))
	defer func() { _ = rs.Locker().Close() }()
	if err := rs.NewMutex("k").Lock(); err != nil {
		t.Error(err)
	}
}

// Operators see who holds a lock of a program that has moved, under its own name.
func TestInspection(t *testing.T) {
	s := redistest.Start(t)
	d := &deployment{T: t, servers: []*redistest.Server{s}}
	d.pools = append(d.pools, clients["goredis"](t, s.Addr()))
	m := d.locked()
	if keys := s.Keys(t, "orders:*"); !slices.Equal(keys, []string{m.Name()}) {
		t.Errorf("the keys are %q", keys)
	}
	tool, err := config.Open(t.Context(), "redis://"+s.Addr()+"/0?prefix=&driver=goredis")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tool.Close() }()
	inspector, _ := locker.As[inspect.Inspector](tool)
	seen, err := inspector.Inspect(t.Context(), m.Name())
	if err != nil || seen.State != inspect.Held || seen.Label == "" || seen.Remaining < 30*time.Minute ||
		!strings.HasPrefix(m.Value(), seen.Owner) {
		t.Errorf("%+v, %v", seen, err)
	}
}
