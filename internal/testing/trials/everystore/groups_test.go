package everystore

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// BenchmarkGroups measures an acquisition and its release where permits, readers and writers are one group: of a free
// group, of one for which callers of four Clients contend and which they use for a millisecond, of all permits by one
// caller, one by one, and of a weight of all.
func BenchmarkGroups(b *testing.B) {
	for name, start := range map[string]func(b *testing.B) (url func(addr string) string, server string){
		"Redis": func(b *testing.B) (func(string) string, string) {
			return func(addr string) string { return "redis://" + addr }, redistest.Start(b).Addr()
		},
		"PostgreSQL": func(b *testing.B) (func(string) string, string) {
			s := pgtest.Start(b, "fsync=on")
			migrate(b, s.URL("postgres"))
			return func(addr string) string {
				return "postgres://postgres@" + addr + "/postgres?sslmode=disable&pool_max_conns=16"
			}, s.Socket()
		},
	} {
		b.Run(name, func(b *testing.B) {
			url, server := start(b)
			var m groupMeter
			clients := openClients(b, url(m.relay(b, server)), 4)
			of := func(n, weight int) func(l locker.Locker) locker.Locker {
				return func(l locker.Locker) locker.Locker { return semaphore.New(l, n).Weight(weight) }
			}
			writer := func(l locker.Locker) locker.Locker { return rwlock.New(l).Exclusive() }
			for _, n := range []int{1, 3, 64, 65, 100, 1024} {
				text := "n=" + strconv.Itoa(n)
				b.Run("free/"+text, func(b *testing.B) { m.measure(b, clients, 1, of(n, 1)) })
				b.Run("contended/"+text, func(b *testing.B) { m.measure(b, clients, n+n/4+16, of(n, 1)) })
				b.Run("all/"+text, func(b *testing.B) { m.fill(b, semaphore.New(clients[0], n), n) })
				b.Run("weight of all/"+text, func(b *testing.B) { m.measure(b, clients, 1, of(n, n)) })
			}
			b.Run("free/exclusive", func(b *testing.B) { m.measure(b, clients, 1, writer) })
			b.Run("contended/exclusive", func(b *testing.B) { m.measure(b, clients, 20, writer) })
		})
	}
}

// groupMeter counts requests to a server, and the bytes of them and of the answers.
type groupMeter struct{ requests, bytes atomic.Int64 }

// relay returns the address of a way to a server. Bytes that a client sends at once are one request.
func (m *groupMeter) relay(b *testing.B, server string) (addr string) {
	side := func(requests int64) testserver.Side {
		return testserver.Side{Read: testserver.Chunks(), Decide: func(piece []byte) testserver.Action {
			m.requests.Add(requests)
			m.bytes.Add(int64(len(piece)))
			return testserver.Pass
		}}
	}
	return testserver.NewRelay(b, server, func() (there, back testserver.Side) { return side(1), side(0) }).Addr()
}

// measure lets callers of some Clients acquire and release what of says, each at least twice. What fails, because the
// machine is too busy, is logged and does not count.
func (m *groupMeter) measure(
	b *testing.B, clients []locker.Locker, callers int, of func(l locker.Locker) locker.Locker,
) {
	each := max(2, b.N/callers)
	var all sync.WaitGroup
	var done, longest atomic.Int64
	m.report(b, func() int {
		for i := range callers {
			all.Go(func() {
				l := of(clients[i%len(clients)])
				for range each {
					began := time.Now()
					lease, err := l.Lock(b.Context(), b.Name())
					if err != nil {
						b.Log(err)
						continue
					}
					done.Add(1)
					waited := int64(time.Since(began))
					for most := longest.Load(); waited > most && !longest.CompareAndSwap(most, waited); {
						most = longest.Load()
					}
					if callers > 1 {
						<-time.After(time.Millisecond)
					}
					if err := lease.Unlock(b.Context()); err != nil {
						b.Log(err)
					}
				}
			})
		}
		all.Wait()
		return int(done.Load())
	})
	b.ReportMetric(float64(longest.Load())/1e6, "longest-ms")
}

// fill lets one caller acquire all permits, one by one, and release them. An operation is one permit.
func (m *groupMeter) fill(b *testing.B, l locker.Locker, n int) {
	m.report(b, func() int {
		for done := 0; done < b.N; {
			var leases []locker.Lease
			for ; len(leases) < n && done < b.N; done++ {
				lease, err := l.Lock(b.Context(), b.Name())
				if err != nil {
					b.Fatal(err)
				}
				leases = append(leases, lease)
			}
			for _, lease := range leases {
				if err := lease.Unlock(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		}
		return b.N
	})
}

// report says what each acquisition, of as many as do returns, has cost with its release.
func (m *groupMeter) report(b *testing.B, do func() (acquisitions int)) {
	requests, bytes, cpu := m.requests.Load(), m.bytes.Load(), serverCPU(b)
	n := float64(do())
	b.ReportMetric(float64(m.requests.Load()-requests)/n, "requests")
	b.ReportMetric(float64(m.bytes.Load()-bytes)/n, "bytes")
	b.ReportMetric(float64((serverCPU(b)-cpu).Microseconds())/n, "server-µs")
}
