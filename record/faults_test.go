package record_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/record"
)

// seeds is how many runs with different faults there are of each kind; with -short, a third.
const seeds = 60

// judge sees all leases of a run, of all processes.
type judge struct {
	t  *testing.T
	mu sync.Mutex

	holder locker.Lease // the last one
	token  uint64       // the greatest
	grants int
}

// asked returns the greatest token before a call.
func (j *judge) asked() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.token
}

// granted is called with what a call has acquired, as soon as it has returned. before is what asked has returned.
func (j *judge) granted(l locker.Lease, before uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.grants++
	if j.holder != nil && j.holder.Err() == nil && l.Err() == nil {
		j.t.Errorf("two holders: one with token %d until %v, and one with token %d", j.holder.Fence(),
			time.Until(j.holder.Until()), l.Fence())
	}
	if l.Fence() <= before {
		j.t.Errorf("token %d after %d", l.Fence(), before)
	}
	j.holder, j.token = l, max(j.token, l.Fence())
}

// run lets processes acquire k while faults happen, for a minute. It returns how many times they have.
func run(t *testing.T, s *recordstore.Store, rng *rand.Rand, processes int,
	call func(rng *rand.Rand, l *locker.Client, j *judge),
) int {
	machine := time.Now().Add(-time.Hour)
	return runOf(t, rng, processes, func() *locker.Client {
		var own record.Store = host{s, "a", machine}
		switch rng.IntN(4) {
		case 0: // it does not know the clock of its machine
			own = host{s, "", machine}
		case 1:
			own = s
		}
		return client(t, own, record.Timeout(time.Second), record.Poll(200*time.Millisecond))
	}, call)
}

// runOf is run for processes of any kind.
func runOf(t *testing.T, rng *rand.Rand, processes int, open func() *locker.Client,
	call func(rng *rand.Rand, l *locker.Client, j *judge),
) int {
	j := &judge{t: t}
	end := time.Now().Add(time.Minute)
	var wg sync.WaitGroup
	for range processes {
		l := open()
		for range 2 {
			rng := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
			wg.Go(func() {
				for time.Now().Before(end) {
					call(rng, l, j)
					time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
				}
			})
		}
	}
	wg.Wait()
	return j.grants
}

// keep extends the lease now and then, and unlocks it. A process that crashes keeps it until its end.
func keep(ctx context.Context, rng *rand.Rand, lease locker.Lease, crashes bool) {
	if crashes {
		<-lease.Done()
		return
	}
	for range rng.IntN(4) {
		time.Sleep(time.Duration(rng.Int64N(int64(ttl / 2))))
		_ = lease.Extend(ctx, locker.TTL(ttl/2+time.Duration(rng.Int64N(int64(ttl)))))
	}
	_ = lease.Unlock(ctx)
}

// eachSeed runs a test with faults of several kinds, in virtual time.
func eachSeed(t *testing.T, f func(t *testing.T, s *recordstore.Store, rng *rand.Rand)) {
	n := uint64(seeds)
	if testing.Short() {
		n /= 3
	}
	for seed := range n {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 1))
				s := recordstore.New()
				s.Latency = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
				t.Cleanup(s.Wait)
				s.Put("k", record.Free(ahead())) // so that the clock does not make tokens grow
				s.Inject(recordstore.Faults(rng))
				f(t, s, rand.New(rand.NewPCG(seed, 2)))
			})
		})
	}
}

// Whatever happens to requests, a lock has one holder at a time, and tokens grow. Holders crash, or unlock at any time.
func TestOneHolderUnderFaults(t *testing.T) {
	eachSeed(t, func(t *testing.T, s *recordstore.Store, rng *rand.Rand) {
		n := run(t, s, rng, 4, func(rng *rand.Rand, l *locker.Client, j *judge) {
			ttl := 100*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second)))
			opts := []locker.Option{locker.TTL(ttl)}
			crashes := rng.IntN(4) == 0
			if crashes {
				opts = append(opts, locker.NoRenewal())
			}
			lock := l.Lock
			if rng.IntN(3) == 0 {
				lock = l.TryLock
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(5*time.Second))))
			defer cancel()
			before := j.asked()
			lease, err := lock(ctx, "k", opts...)
			if err != nil {
				return
			}
			j.granted(lease, before)
			keep(ctx, rng, lease, crashes)
		})
		s.Inject(nil)
		if n < 10 {
			t.Errorf("%d locks were acquired in a minute", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if _, err := client(t, s).Lock(ctx, "k"); err != nil {
			t.Errorf("after the faults: %v", err)
		}
	})
}

// Whatever happens to requests, no call leaves a lock behind.
func TestNothingIsLeftUnderFaults(t *testing.T) {
	eachSeed(t, func(t *testing.T, s *recordstore.Store, rng *rand.Rand) {
		run(t, s, rng, 3, func(rng *rand.Rand, l *locker.Client, j *judge) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(2*time.Second))))
			defer cancel()
			before := j.asked()
			lease, err := l.Lock(ctx, "k", locker.TTL(time.Hour))
			if err != nil {
				return
			}
			j.granted(lease, before)
			time.Sleep(time.Duration(rng.Int64N(int64(50 * time.Millisecond))))
			_ = lease.Unlock(ctx)
		})
		s.Inject(nil)
		time.Sleep(time.Minute)
		if left := s.Taken(); len(left) > 0 {
			t.Errorf("left behind: %s", s.Text("k"))
		}
	})
}
