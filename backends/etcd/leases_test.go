package etcd_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// manyLeases is how many leases TestManyLeases holds, unless the variable LOCKER_ETCD_LEASES says otherwise.
const manyLeases = 1000

// TestManyLeases holds many leases of one Client on three members, and renews each at least twice. That costs no entry
// of etcd's log, and no goroutine and no stream for each lease.
func TestManyLeases(t *testing.T) {
	if testing.Short() {
		return
	}
	// Renewals of a Client share one stream, and a member that is not the leader forwards each of them. On a busy machine
	// 68 per second were seen. 1,000 leases of 15 s need as many, and those of 30 s half of them.
	n, ttl := manyLeases, 30*time.Second
	if set, err := strconv.Atoi(os.Getenv("LOCKER_ETCD_LEASES")); err == nil {
		n = set
	}
	if set, err := time.ParseDuration(os.Getenv("LOCKER_ETCD_TTL")); err == nil {
		ttl = set
	}
	c := startCluster(t)
	l := c.client()
	unlock(t, lock(t, l, "first"))
	few, before := runtime.NumGoroutine(), heap()
	start := time.Now()
	leases := c.many(l, n, ttl)
	t.Logf("%d leases with a TTL of %v in %v, %d bytes each", n, ttl, time.Since(start).Round(time.Millisecond),
		(heap()-before)/n)

	const committed, renewed = "etcd_server_proposals_committed_total", "etcd_debugging_lease_renewed_total"
	start = time.Now()
	entries, renewals, cpu := c.total(committed), c.total(renewed), processorTime()
	messages := c.total("grpc_server_msg_received_total")
	most := 0
	until(t, "each lease has been renewed twice", func() bool {
		most = max(most, runtime.NumGoroutine())
		<-time.After(200 * time.Millisecond) // asking costs time, too
		return c.total(renewed) >= renewals+2*float64(n)
	})
	seconds := time.Since(start).Seconds()
	until(t, "the goroutines are those of an idle Client", func() bool { return runtime.NumGoroutine() < few+20 })
	logged := (c.total(committed) - entries) / float64(len(c.members))
	t.Logf("%.1f s: for each second %.0f renewals, %.1f log entries, %.0f messages, %.3f s of the client's processor "+
		"time; at most %d goroutines", seconds, (c.total(renewed)-renewals)/seconds, logged/seconds,
		(c.total("grpc_server_msg_received_total")-messages)/seconds, (processorTime()-cpu).Seconds()/seconds, most)
	if logged > float64(n)/20 {
		t.Errorf("two renewals of %d leases: expected no entries of the log, seen %.0f", n, logged)
	}
	if streams := c.total("etcd_debugging_mvcc_watch_stream_total"); streams > 3 {
		t.Errorf("expected one stream of watches, seen %.0f", streams)
	}
	for _, lease := range leases {
		c.must(lease.Err())
	}
	start = time.Now()
	concurrently(n, func(i int) { unlock(t, leases[i]) })
	t.Logf("released in %v", time.Since(start).Round(time.Millisecond))
	c.empty()
}

// many acquires n locks.
func (c *cluster) many(l locker.Locker, n int, ttl time.Duration) []locker.Lease {
	leases := make([]locker.Lease, n)
	concurrently(n, func(i int) { leases[i] = lock(c.t, l, fmt.Sprint("k", i), locker.TTL(ttl)) })
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
