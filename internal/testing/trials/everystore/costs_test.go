package everystore

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/storeurl"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// BenchmarkCosts is what an acquisition and its release cost on every kind of store if the lock is free: requests to
// all servers together, and their processor time. The kinds are a plain lock, a permit, a shared and an exclusive lock.
func BenchmarkCosts(b *testing.B) {
	for name, start := range meters() {
		b.Run(name, func(b *testing.B) {
			url, requests := start(b)
			l := openClients(b, url, 1)[0]
			rw := rwlock.New(l)
			for _, kind := range []struct {
				name   string
				locker locker.Locker
			}{{"plain", l}, {"permit", semaphore.New(l, 3)}, {"shared", rw.Shared()}, {"exclusive", rw.Exclusive()}} {
				b.Run(kind.name, func(b *testing.B) {
					sent, cpu := requests(), serverCPU(b)
					cycles(b, 1, func(ctx context.Context, _ int) error { return cycle(ctx, kind.locker, "costs") })
					n := float64(b.N)
					b.ReportMetric((requests()-sent)/n, "requests/op")
					b.ReportMetric(float64((serverCPU(b)-cpu).Microseconds())/n, "server-µs/op")
				})
			}
		})
	}
}

// metered starts each kind of store, and returns its URL and a function that says how many requests there were.
var metered = map[string]func(b *testing.B) (url string, requests func() float64){
	storeurl.Memory: func(*testing.B) (string, func() float64) { return "memory:", func() float64 { return 0 } },
	"Redis": func(b *testing.B) (string, func() float64) {
		addrs, requests := relays(b, redistest.Start(b).Addr())
		return "redis://" + addrs, requests
	},
	"Redlock": func(b *testing.B) (string, func() float64) {
		addrs, requests := relays(b, redistest.Start(b).Addr(), redistest.Start(b).Addr(), redistest.Start(b).Addr())
		return "redlock+rueidis://" + addrs, requests
	},
	"PostgreSQL": func(b *testing.B) (string, func() float64) {
		s := pgtest.Start(b, "fsync=on")
		migrate(b, s.URL("postgres"))
		addr, requests := relays(b, s.Socket())
		return "postgres://postgres@" + addr + "/postgres?sslmode=disable", requests
	},
	"NATS": func(b *testing.B) (string, func() float64) {
		addr, requests := relays(b, natstest.Start(b).Addr())
		return "nats://" + addr, requests
	},
	"etcd": func(b *testing.B) (string, func() float64) { // whose connections carry more than requests
		b.Setenv(etcdtest.NoFsync, "false")
		m := etcdtest.Start(b)
		return "etcd://" + m.Addr(), func() float64 { return m.Metric("grpc_server_msg_received_total") }
	},
}

// meters is metered with the stores of records.
func meters() map[string]func(b *testing.B) (url string, requests func() float64) {
	all := maps.Clone(metered)
	for _, d := range deployment.Records {
		all[d.Name] = func(b *testing.B) (string, func() float64) { return d.Start(b).Counted(b) }
	}
	return all
}

// relays are ways to some servers that count requests. What a client sends at once is one.
func relays(b *testing.B, servers ...string) (addrs string, requests func() float64) {
	return deployment.Counting(b, func([]byte) bool { return true }, servers...)
}

// serverCPU is the processor time of all servers: of the children of this process, and of theirs. It is known on Linux.
func serverCPU(b *testing.B) (sum time.Duration) {
	const tick = 10 * time.Millisecond // in which the kernel counts
	parents, times := map[int]int{}, map[int]time.Duration{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		_, after, known := strings.Cut(string(text), ") ")
		fields := strings.Fields(after)
		if err != nil || !known || len(fields) < 15 {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parents[pid], _ = strconv.Atoi(fields[1])
		for _, field := range fields[11:15] { // user and system, of the process and of its children that have ended
			ticks, err := strconv.Atoi(field)
			if err != nil {
				b.Fatal(err)
			}
			times[pid] += time.Duration(ticks) * tick
		}
	}
	for pid := range times {
		for p := parents[pid]; p > 0; p = parents[p] {
			if p == os.Getpid() {
				sum += times[pid]
				break
			}
		}
	}
	return sum
}
