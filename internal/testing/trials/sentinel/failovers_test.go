// Package sentinel counts what failovers of a master do to locks whose clients find it by its sentinels.
package sentinel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	_ "github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

const (
	// failoversEnv is the number of failovers. Without it, there is one.
	failoversEnv = "LOCKER_SENTINEL"

	keys        = 4
	workers     = 2 // for each key
	ttl         = 2 * time.Second
	longTimeout = 2 * time.Minute
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.Lingering()...) }

// load is the work of the clients of one driver, and what became of it.
type load struct {
	name   string
	locker locker.Locker
	held   locker.Lease // over each failover

	mu         sync.Mutex
	acquired   []time.Time
	byWorker   [keys * workers]int
	failures   [keys * workers]string // the last failure of each worker, and when it was
	tokens     [keys]uint64
	back       int // tokens that were not greater than the last one of the key
	holders    [keys]int
	doubles    int // locks that had two holders
	gaps       []time.Duration
	kept, lost int
}

// Each of the drivers that find a master by its sentinels goes on, whether the master is killed or hands over: every
// caller that waits gets its lock, and a lease that was held is either lost or still the only one.
func TestFailovers(t *testing.T) {
	n := 1
	if text := os.Getenv(failoversEnv); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	servers := []*redistest.Server{redistest.Start(t, "--repl-diskless-sync-delay", "0")}
	for range 2 {
		servers = append(servers, redistest.StartReplica(t, servers[0]))
	}
	sentinels := redistest.StartSentinels(t, 3, 300*time.Millisecond, servers[0], servers[1:]...)
	cfg := drivers.Config{Sentinel: &drivers.Sentinel{Master: redistest.SentinelMaster}}
	for _, s := range sentinels {
		cfg.Sentinel.Addrs = append(cfg.Sentinel.Addrs, s.Addr())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var loads []*load
	t.Cleanup(func() {
		if t.Failed() {
			describe(t, servers, sentinels, loads)
		}
	})
	var running sync.WaitGroup
	for _, name := range drivers.Reaching(drivers.SentinelMaster) {
		d, err := drivers.Open(ctx, name, cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := single.New(d, single.Prefix(name+":"))
		l := &load{name: name, locker: c}
		for i := range keys * workers {
			running.Go(func() { l.work(ctx, t, i) })
		}
		t.Cleanup(func() { _ = c.Close() })
		loads = append(loads, l)
	}
	defer running.Wait()
	defer cancel()

	master := servers[0]
	for i := range n {
		for _, l := range loads {
			l.hold(ctx, t)
		}
		former, began := master, time.Now()
		if i%2 == 0 {
			former.Kill()
		} else {
			eventually(t, "the sentinels see that a replica is fit", func() bool {
				began = time.Now()
				_, err := sentinels[0].Do("SENTINEL", "FAILOVER", redistest.SentinelMaster)
				return err == nil
			})
		}
		isMaster := func(s *redistest.Server) bool { return s.Pid() != 0 && s.IsMaster() }
		eventually(t, "a promoted replica", func() bool {
			return slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s != former && isMaster(s) })
		})
		// Until the sentinels demote a master that has handed over, clients that are connected to it get locks there.
		// On a machine that stands still for a moment, the sentinels may go back to the former master.
		eventually(t, "one master is left", func() bool {
			left := slices.DeleteFunc(slices.Clone(servers), func(s *redistest.Server) bool { return !isMaster(s) })
			if len(left) == 1 {
				master = left[0]
			}
			return len(left) == 1
		})
		for _, l := range loads {
			l.recovers(ctx, t, began)
		}
		if former.Pid() == 0 {
			former.Restart()
			former.Follow(t, master)
		}
	}
	cancel()
	running.Wait()
	t.Log("\n" + report(n, loads))
}

// work takes locks of one key until ctx ends.
func (l *load) work(ctx context.Context, t *testing.T, worker int) {
	key := worker % keys
	for ctx.Err() == nil {
		lease, err := l.locker.Lock(ctx, strconv.Itoa(key), locker.TTL(ttl))
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("%s: %v", l.name, err)
				return
			}
			l.mu.Lock()
			l.failures[worker] = fmt.Sprint(time.Now().Format(time.TimeOnly), " ", err)
			l.mu.Unlock()
			continue
		}
		l.mu.Lock()
		l.acquired = append(l.acquired, time.Now())
		l.byWorker[worker]++
		if lease.Fence() <= l.tokens[key] {
			l.back++
		}
		l.tokens[key] = lease.Fence()
		l.holders[key]++
		if l.holders[key] > 1 {
			l.doubles++
		}
		l.mu.Unlock()
		select {
		case <-lease.Done():
		case <-time.After(10 * time.Millisecond):
		}
		l.mu.Lock()
		l.holders[key]--
		l.mu.Unlock()
		_ = lease.Unlock(context.WithoutCancel(ctx))
	}
}

// hold takes a lock that is held over the failover.
func (l *load) hold(ctx context.Context, t *testing.T) {
	eventually(t, l.name+": a lock", func() bool {
		var err error
		l.held, err = l.locker.TryLock(ctx, "held", locker.TTL(ttl))
		return err == nil
	})
}

// recovers waits until each worker has had a lock again, twice, and finds out what became of the lock that was held.
func (l *load) recovers(ctx context.Context, t *testing.T, began time.Time) {
	l.mu.Lock()
	before := l.byWorker
	l.mu.Unlock()
	eventually(t, l.name+": each waiter gets a lock", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, n := range l.byWorker {
			if n < before[i]+2 {
				return false
			}
		}
		return true
	})
	eventually(t, l.name+": the lock that was held is proved, or lost", func() bool {
		if l.held.Err() != nil {
			l.lost++
			return true
		}
		if locker.Verify(ctx, l.held) != nil {
			return false
		}
		l.kept++
		if other, err := l.locker.TryLock(ctx, "held"); err == nil {
			t.Errorf("%s: a lock that is proved was given to another", l.name)
			_ = other.Unlock(ctx)
		}
		return true
	})
	_ = l.held.Unlock(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	gap, last := time.Duration(0), began
	for _, at := range l.acquired {
		if at.After(began) {
			gap, last = max(gap, at.Sub(last)), at
		}
	}
	l.gaps = append(l.gaps, gap)
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(longTimeout); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", longTimeout, what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// describe logs what servers, sentinels and callers say.
func describe(t *testing.T, servers, sentinels []*redistest.Server, loads []*load) {
	for _, s := range servers {
		said, err := s.Do("ROLE")
		t.Logf("%s %s: %v %v", time.Now().Format(time.TimeOnly), s.Addr(), said, err)
	}
	for _, s := range sentinels {
		said, err := s.Do("SENTINEL", "MASTER", redistest.SentinelMaster)
		t.Logf("sentinel %s: %v %v", s.Addr(), said, err)
	}
	for _, l := range loads {
		l.mu.Lock()
		t.Logf("%s: %d acquisitions, the last failures: %s", l.name, l.byWorker, strings.Join(l.failures[:], "; "))
		l.mu.Unlock()
	}
}

func report(n int, loads []*load) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d failovers, half of them by SIGKILL, half by `SENTINEL FAILOVER`; down after 300 ms; %d "+
		"callers for %d keys of each driver.\n\n", n, keys*workers, keys)
	text.WriteString("| driver | acquisitions | without locks, p50 | longest | leases kept | lost | " +
		"tokens that did not grow | second holders |\n| --- | --: | --: | --: | --: | --: | --: | --: |\n")
	for _, l := range loads {
		slices.Sort(l.gaps)
		fmt.Fprintf(&text, "| %s | %d | %v | %v | %d | %d | %d | %d |\n", l.name, len(l.acquired),
			l.gaps[len(l.gaps)/2].Round(10*time.Millisecond), l.gaps[len(l.gaps)-1].Round(10*time.Millisecond),
			l.kept, l.lost, l.back, l.doubles)
	}
	return text.String()
}
