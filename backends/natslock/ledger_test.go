package natslock_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/lockertrace"
)

// ledger has what clients of a cluster were granted. It checks that at most one lease is valid at a time, and that
// tokens grow.
type ledger struct {
	cluster
	mu sync.Mutex

	holder locker.Lease
	last   uint64
	grants []int // by client
	fault  error // the last one that was seen

	since time.Time      // the last grant
	told  map[string]int // what attempts were told since then, and how often
	pause pause          // the longest one since it was set to zero
}

// pause is a time without a grant.
type pause struct {
	from   time.Time
	length time.Duration
	told   map[string]int // what attempts were told meanwhile, and how often
}

// valid reports whether the holder of the lease may rely on it. The test may have stood still meanwhile, so the clock
// is asked as well.
func valid(l locker.Lease) bool { return l != nil && l.Err() == nil && time.Now().Before(l.Until()) }

func (l *ledger) granted(client int, lease locker.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.holder; valid(lease) && valid(other) {
		l.t.Errorf("token %d was granted while the lease with token %d is valid", lease.Fence(), other.Fence())
	}
	if valid(lease) && lease.Fence() <= l.last {
		l.t.Errorf("token %d after token %d", lease.Fence(), l.last)
	}
	l.holder, l.last = lease, max(l.last, lease.Fence())
	l.grants[client]++
	if now := time.Now(); !l.since.IsZero() && now.Sub(l.since) > l.pause.length {
		l.pause = pause{l.since, now.Sub(l.since), l.told}
	}
	l.since, l.told = time.Now(), nil
}

// attempted notes what an attempt was told.
func (l *ledger) attempted(a lockertrace.Attempt) {
	if a.Err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told == nil {
		l.told = make(map[string]int)
	}
	text := a.Err.Error()
	if errors.Is(a.Err, locker.ErrHeld) {
		text = locker.ErrHeld.Error() // and not for how long
	}
	l.told[text]++
}

// longest returns the longest pause since it was called last.
func (l *ledger) longest() (longest pause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	longest, l.pause = l.pause, pause{}
	return longest
}

// work takes the lock again and again until ctx ends, and releases it. It tolerates that the store fails.
func (l *ledger) work(ctx context.Context, client int, c *config.Opened) {
	traced := lockertrace.With(ctx, &lockertrace.Trace{Attempted: l.attempted})
	for ctx.Err() == nil {
		lease, err := c.Lock(traced, "k")
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, locker.ErrUnavailable) {
				l.t.Errorf("Lock: %v", err)
			}
			l.mu.Lock()
			l.fault = err
			l.mu.Unlock()
			rest(ctx, 20*time.Millisecond)
			continue
		}
		l.granted(client, lease)
		rest(ctx, 5*time.Millisecond)
		_ = locker.Verify(ctx, lease) // an error is about the fault
		_ = lease.Unlock(ctx)
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// standstill is how long a cluster may take to go on after a fault. It takes ten seconds, and minutes if the machine is
// busy.
const standstill = 3 * time.Minute

// until waits until enough says that there were enough grants.
func (l *ledger) until(what string, enough func(grants []int) bool) {
	l.t.Helper()
	start := time.Now()
	for end := start.Add(standstill); ; <-time.After(10 * time.Millisecond) {
		l.mu.Lock()
		grants, fault, since, told := slices.Clone(l.grants), l.fault, l.since, maps.Clone(l.told)
		l.mu.Unlock()
		switch {
		case enough(grants):
			l.t.Logf("%s after %v", what, time.Since(start))
			return
		case time.Now().After(end):
			for i, s := range l.servers {
				log := s.Log()
				l.t.Logf("log of n%d:\n%s", i, log[max(0, len(log)-4000):])
			}
			l.t.Fatalf("%s: not within %v, there were %v grants, the last one at %v, and the last error was %v; since then: %v",
				what, standstill, grants, since.UTC(), fault, told)
		}
	}
}

// progress waits until there were n more grants.
func (l *ledger) progress(n int) {
	l.t.Helper()
	sum := func(grants []int) (sum int) {
		for _, n := range grants {
			sum += n
		}
		return sum
	}
	before := -1
	l.until("more grants", func(grants []int) bool {
		if before < 0 {
			before = sum(grants)
		}
		return sum(grants) >= before+n
	})
}

// everybody waits until each client was granted the lock once more.
func (l *ledger) everybody() {
	l.t.Helper()
	var before []int
	l.until("a grant for each client", func(grants []int) bool {
		if before == nil {
			before = grants
		}
		for i := range grants {
			if grants[i] == before[i] {
				return false
			}
		}
		return true
	})
}

// run calls do while n clients contend for the lock, and then checks that nothing is left behind.
func (l *ledger) run(n int, do func()) {
	l.t.Helper()
	l.grants = make([]int, n)
	ctx, cancel := context.WithCancel(context.Background())
	nothing := make(chan struct{}) // closed when nothing is left behind, or that does not matter any more
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(nothing)
	defer cancel()
	for i := range n {
		opened, err := config.Open(ctx, l.url())
		if err != nil {
			l.t.Fatal(err)
		}
		workers.Go(func() {
			defer opened.Close()
			l.work(ctx, i, opened)
			<-nothing
		})
	}
	l.progress(1)
	do()
	cancel()
	l.nothingLeft()
}
