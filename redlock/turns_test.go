package redlock_test

import (
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/redistest"
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

// The node that keeps the queue fails in the middle. The others go on with the next one.
func TestTurnsWhileTheQueueFails(t *testing.T) {
	d, measure := measuring(2 * time.Second)
	// A node that forgets the lock, too, may let a second holder in.
	const forget = "for _, key in ipairs(redis.call('KEYS', '*')) do if key ~= KEYS[1] then redis.call('DEL', key) end end"
	faults := map[string]func(t *testing.T, s *redistest.Server){
		"hung":   func(_ *testing.T, s *redistest.Server) { s.Pause() },
		"killed": func(_ *testing.T, s *redistest.Server) { s.Kill() },
		"flushed": func(t *testing.T, s *redistest.Server) {
			if _, err := s.Do("EVAL", forget, "1", "lock:k"); err != nil {
				t.Error(err)
			}
		},
	}
	for _, name := range short.Part(t, 1, slices.Sorted(maps.Keys(faults))) {
		for n, driver := range drivers.Names() {
			if !measure && n != len(name)%3 { // one driver for each
				continue
			}
			t.Run(name+"/"+driver, func(t *testing.T) {
				most, unfair := 1.5, .5
				if measure {
					most, unfair = 1.1, .05
				}
				var r contention.Result
				var each float64
				var gap time.Duration
				for range tries {
					c := startCluster(t, 5)
					s := c[keeper("k", 5)]
					a := &asks{tokens: map[string]bool{}}
					ls := contenders(t, c, driver, a)
					failed := make(chan struct{})
					timer := time.AfterFunc(d/2, func() {
						faults[name](t, s)
						close(failed)
					})
					r = contention.RunOverFailure(t, ls, "k", time.Millisecond, d)
					if !timer.Stop() {
						<-failed
					}
					s.Resume()
					if len(r.Handoffs) == 0 {
						continue // a stall has taken all the time
					}
					if len(r.Unconfirmed) > 1 { // there was one holder when the node failed
						t.Errorf("%d releases were not confirmed: %v", len(r.Unconfirmed), r.Unconfirmed)
					}
					each, gap = float64(a.count())/float64(r.Total()), slices.Max(r.Handoffs)
					t.Logf("%v, gap %v, %.3f attempts each", r, gap, each)
					if each <= most && r.Unfairness() <= unfair && gap <= 5*time.Second {
						break
					}
				}
				if p99 := contention.Quantile(r.Waits, .99); measure && p99 > 2*r.FairWait() {
					t.Errorf("p99 %v, fair %v", p99, r.FairWait())
				}
				if len(r.Handoffs) == 0 || each > most || r.Unfairness() > unfair || gap > 5*time.Second {
					t.Errorf("%.3f attempts each, want %v; unfairness %.2f, want %v: %v; gap %v", each, most, r.Unfairness(), unfair,
						r.Holds, gap)
				}
			})
		}
	}
}
