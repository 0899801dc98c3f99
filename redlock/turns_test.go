package redlock_test

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/wire"
)

// keeper is the index of the node that keeps the queue for key.
func keeper(key string, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int(h.Sum32() % uint32(n))
}

// asks counts attempts by their tokens.
type asks struct {
	mu     sync.Mutex
	tokens map[string]bool
}

func (a *asks) wrap(_ int, d drivers.Driver) drivers.Driver {
	counting := tap{d, func(cmds []drivers.Command) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, cmd := range cmds {
			for _, token := range wire.Attempts(cmd) {
				a.tokens[token] = true
			}
		}
	}, nil}
	return struct {
		tap
		drivers.Subscriber
	}{counting, d.(drivers.Subscriber)}
}

func (a *asks) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.tokens)
}

// polling waits as clients without a queue do: it tries again after 1 to 11 ms.
type polling struct{ locker.Locker }

func (p polling) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	for {
		l, err := p.TryLock(ctx, key, opts...)
		if !errors.Is(err, locker.ErrHeld) {
			return l, err
		}
		time.Sleep(time.Millisecond + rand.N(10*time.Millisecond))
	}
}

// contenders makes eight clients of c.
func contenders(t *testing.T, c cluster, driver string, a *asks) (ls []locker.Locker) {
	for range 8 {
		l := c.tapped(t, driver, a.wrap)
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		ls = append(ls, l)
	}
	return ls
}

// tries is how often turns are taken anew if they were not fair. In virtual time they are at once:
// TestTurnsInVirtualTime.
const tries = 8

// Eight clients take turns, as fast as their drivers and the machine allow. LOCKER_MEASURE=5s go test -run TestTurns -v
func TestTurns(t *testing.T) {
	d, measure := measuring(time.Second)
	const (
		hold   = time.Millisecond
		enough = 10 // turns of each client
	)
	for _, driver := range short.Part(t, 1, drivers.Names()) { // one after the other: they would measure each other
		t.Run(driver, func(t *testing.T) {
			c := startCluster(t, 5)
			a := &asks{tokens: map[string]bool{}}
			ls := contenders(t, c, driver, a)
			contention.Run(t, ls, "k", hold, 300*time.Millisecond)
			most, unfair := 1.5, .25
			if measure {
				most, unfair = 1.1, .05
			}
			// A client that the machine keeps from running misses its turns; it does not each time.
			var r contention.Result
			var each float64
			for range tries {
				before := a.count()
				r = contention.Run(t, ls, "k", hold, d)
				each = float64(a.count()-before) / float64(r.Total())
				t.Logf("%v, %.3f attempts each", r, each)
				if each <= most && r.Unfairness() <= unfair {
					break
				}
				// One turn more or less, at either end, must not decide.
				if r.Total() < enough*len(ls) && d < 8*time.Second {
					d *= 2
				}
			}
			if p99 := contention.Quantile(r.Waits, .99); measure && p99 > 2*r.FairWait() {
				t.Errorf("p99 %v, fair %v", p99, r.FairWait())
			}
			if each > most || r.Unfairness() > unfair {
				t.Errorf("%.3f attempts each, want %v; unfairness %.2f, want %v: %v", each, most, r.Unfairness(), unfair, r.Holds)
			}
			if measure {
				for i := range ls {
					ls[i] = polling{ls[i]}
				}
				p := contention.Run(t, ls, "polled", hold, d)
				t.Logf("polling: %v; turns make %.2f of it", p, r.Rate()/p.Rate())
			}
			c.wantNoLocks(t)
		})
	}
}
