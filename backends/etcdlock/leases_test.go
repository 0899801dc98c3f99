package etcdlock_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

const manyLeases = 1000

// leasesOr returns how many leases a test holds: n, unless the variable LOCKER_ETCD_LEASES says otherwise.
func leasesOr(n int) int {
	if set, err := strconv.Atoi(os.Getenv("LOCKER_ETCD_LEASES")); err == nil {
		return set
	}
	return n
}

// TestManyLeases holds many leases of one Client on three members, until each was extended three times. Extensions that
// are due at about the same time share a lease and a transaction. So they cost few entries of etcd's log, and no
// goroutine and no stream for each lock.
func TestManyLeases(t *testing.T) {
	if testing.Short() {
		return
	}
	n, ttl := leasesOr(manyLeases), 30*time.Second
	if set, err := time.ParseDuration(os.Getenv("LOCKER_ETCD_TTL")); err == nil {
		ttl = set
	}
	c := startCluster(t)
	l := c.client()
	unlock(t, lock(t, l, "first"))
	few, before := runtime.NumGoroutine(), heap()
	start := time.Now()
	var mu sync.Mutex
	var took []time.Duration
	leases := c.many(l, "k", n, ttl, func(r lockertrace.Renewal) {
		mu.Lock()
		defer mu.Unlock()
		took = append(took, r.Duration)
	})
	t.Logf("%d leases with a TTL of %v in %v, %d bytes each", n, ttl, time.Since(start).Round(time.Millisecond),
		(heap()-before)/n)

	most := 0
	extended := func(times int) {
		t.Helper()
		ends := make([]time.Time, n)
		for i, lease := range leases {
			ends[i] = lease.Until().Add(time.Duration(2*times-1) * ttl / 6) // an extension adds a third, more or less
		}
		until(t, "each lease has been extended", func() bool {
			most = max(most, runtime.NumGoroutine())
			for i, lease := range leases {
				if lease.Until().Before(ends[i]) {
					<-time.After(200 * time.Millisecond) // asking costs time, too
					c.must(lease.Err())
					return false
				}
			}
			return true
		})
	}
	extended(1) // which ends the leases of the acquisitions
	const committed, size = "etcd_server_proposals_committed_total", "etcd_mvcc_db_total_size_in_bytes"
	start = time.Now()
	entries, bytes, cpu := c.total(committed), c.total(size), processorTime()
	messages := c.total("grpc_server_msg_received_total")
	mu.Lock()
	took = nil
	mu.Unlock()
	extended(2)
	seconds := time.Since(start).Seconds()
	logged := (c.total(committed) - entries) / float64(len(c.members))
	mu.Lock()
	slices.Sort(took)
	t.Logf("%.1f s: for each second %.1f extensions, %.1f log entries, %.0f messages, %.0f bytes of a member's database, "+
		"%.3f s of the client's processor time; an extension takes %v, %v at most; at most %d goroutines", seconds,
		float64(len(took))/seconds, logged/seconds, (c.total("grpc_server_msg_received_total")-messages)/seconds,
		(c.total(size)-bytes)/float64(len(c.members))/seconds, (processorTime()-cpu).Seconds()/seconds,
		took[len(took)/2].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond), most)
	mu.Unlock()
	until(t, "the goroutines are those of an idle Client", func() bool { return runtime.NumGoroutine() < few+20 })
	if logged > 20+float64(n)/2 { // alone, they cost six each
		t.Errorf("two extensions of %d locks: expected few entries of the log, seen %.0f", n, logged)
	}
	if streams := c.total("etcd_debugging_mvcc_watch_stream_total"); streams > 3 {
		t.Errorf("expected one stream of watches, seen %.0f", streams)
	}
	start = time.Now()
	concurrently(n, func(i int) { unlock(t, leases[i]) })
	t.Logf("released in %v", time.Since(start).Round(time.Millisecond))
	c.empty()
}

// many acquires n locks whose keys begin with prefix.
func (c *cluster) many(
	l locker.Locker, prefix string, n int, ttl time.Duration, renewed func(r lockertrace.Renewal),
) []locker.Lease {
	leases := make([]locker.Lease, n)
	ctx := lockertrace.With(c.t.Context(), &lockertrace.Trace{Renewed: renewed})
	concurrently(n, func(i int) {
		var err error
		leases[i], err = l.Lock(ctx, fmt.Sprint(prefix, i), locker.TTL(ttl))
		c.must(err)
	})
	return leases
}

// concurrently calls do with all numbers below n, with some of them at the same time.
func concurrently(n int, do func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				do(int(i) - 1)
			}
		})
	}
	all.Wait()
}

// total is the sum of a metric of all members.
func (c *cluster) total(name string) (sum float64) {
	for _, m := range c.members {
		sum += m.Metric(name)
	}
	return sum
}

// heap returns how many bytes are in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
