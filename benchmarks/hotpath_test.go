package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// Benchmarks of the hot paths, for benchstat:
//
//	go test -run '^$' -bench . -count 10 . > new.txt && benchstat old.txt new.txt

// BenchmarkCycle locks and unlocks one key, and compares that with the two bare commands.
func BenchmarkCycle(b *testing.B) {
	server := []*redistest.Server{redistest.Start(b)}
	for _, c := range clients {
		for _, who := range []struct {
			name string
			open opener
		}{{"raw", raw(c)}, {"driver", rawDriver(c)}, {"locker", ours(c)}} {
			b.Run(who.name+"/"+c, func(b *testing.B) { benchmarkCycle(b, server, who.open, false) })
		}
		b.Run("locker-cancellable/"+c, func(b *testing.B) { benchmarkCycle(b, server, ours(c), true) })
	}
	b.Run("locker-defaults/goredis", func(b *testing.B) { benchmarkCycle(b, server, oursOverDefaults, false) })
}

// oursOverDefaults is this library over a go-redis client with its defaults, which ignores deadlines:
// ContextTimeoutEnabled is off.
func oursOverDefaults(addrs []string, _ limits) (session, error) {
	client := redis.NewClient(&redis.Options{Addr: addrs[0]})
	return &lockerSession{single.New(goredisdriver.New(client)), nil, func() { _ = client.Close() }}, nil
}

// BenchmarkRedlock is the same on five nodes.
func BenchmarkRedlock(b *testing.B) {
	var servers []*redistest.Server
	for range 5 {
		servers = append(servers, redistest.Start(b))
	}
	b.Run("raw/rueidis", func(b *testing.B) { benchmarkCycle(b, servers, openThirdAnswer, false) })
	for _, c := range clients {
		b.Run("locker/"+c, func(b *testing.B) { benchmarkCycle(b, servers, oursRedlock(c), false) })
	}
}

func benchmarkCycle(b *testing.B, group []*redistest.Server, open opener, cancellable bool) {
	session, err := open(addrs(group), limits{8, longTimeout})
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	ctx := context.Background()
	if cancellable {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	cycle(b, ctx, session, "key") // opens connections and loads scripts
	b.ReportAllocs()
	used := clientCPU()
	for b.Loop() {
		cycle(b, ctx, session, "key")
	}
	b.ReportMetric(micros(clientCPU()-used)/float64(b.N), "client-µs/op")
}

func cycle(b *testing.B, ctx context.Context, s session, key string) {
	h, err := s.Lock(ctx, key)
	if err != nil {
		b.Fatal(err)
	}
	if err := h.Unlock(ctx); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkParallel has 512 goroutines with keys of their own, per processor.
func BenchmarkParallel(b *testing.B) {
	server := []*redistest.Server{redistest.Start(b)}
	for _, c := range clients {
		for _, who := range []struct {
			name string
			open opener
		}{{"raw", raw(c)}, {"locker", ours(c)}} {
			b.Run(who.name+"/"+c, func(b *testing.B) {
				session, err := who.open(addrs(server), limits{1024, longTimeout})
				if err != nil {
					b.Fatal(err)
				}
				defer session.Close()
				var id atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(512)
				b.RunParallel(func(pb *testing.PB) {
					key := fmt.Sprintf("key:%d", id.Add(1))
					for pb.Next() {
						h, err := session.Lock(context.Background(), key)
						if err == nil {
							err = h.Unlock(context.Background())
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// BenchmarkContended passes one lock around: between two clients, and among a crowd.
func BenchmarkContended(b *testing.B) {
	var servers []*redistest.Server
	for range 5 {
		servers = append(servers, redistest.Start(b))
	}
	for _, where := range []struct {
		name    string
		group   []*redistest.Server
		clients []int
		open    func(client string) opener
	}{
		{"one", servers[:1], []int{2, 16}, func(c string) opener { return ours(c) }},
		{"redlock", servers, []int{8}, oursRedlock},
	} {
		for _, n := range where.clients {
			name := fmt.Sprintf("%s/%d", where.name, n)
			if where.name == "one" {
				b.Run(name+"/bare/rueidis", func(b *testing.B) { benchmarkContended(b, where.group, rawQueue, n) })
			}
			for _, c := range clients {
				b.Run(name+"/locker/"+c, func(b *testing.B) { benchmarkContended(b, where.group, where.open(c), n) })
			}
		}
	}
}

func benchmarkContended(b *testing.B, group []*redistest.Server, open opener, n int) {
	ctx := context.Background()
	sessions, end, err := open.sessions(n, addrs(group), limits{2, longTimeout})
	if err != nil {
		b.Fatal(err)
	}
	defer end()
	if err := meet(ctx, sessions); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	used := clientCPU()
	var begun atomic.Int64
	var wg sync.WaitGroup
	for _, s := range sessions {
		wg.Go(func() {
			for begun.Add(1) <= int64(b.N) {
				h, err := s.Lock(ctx, "key")
				if err == nil {
					err = h.Unlock(ctx)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(micros(clientCPU()-used)/float64(b.N), "client-µs/op")
}

// BenchmarkTryLockHeld asks for a lock that another client holds.
func BenchmarkTryLockHeld(b *testing.B) {
	server := redistest.Start(b)
	eachClient(b, server, func(b *testing.B, l *locker.Client) {
		holder, err := l.Lock(context.Background(), "key")
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = holder.Unlock(context.Background()) }()
		for b.Loop() {
			if _, err := l.TryLock(context.Background(), "key"); err == nil {
				b.Fatal("two holders")
			}
		}
	})
}

// BenchmarkExtend renews one lease.
func BenchmarkExtend(b *testing.B) {
	server := redistest.Start(b)
	eachClient(b, server, func(b *testing.B, l *locker.Client) {
		lease, err := l.Lock(context.Background(), "key", locker.NoRenewal())
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = lease.Unlock(context.Background()) }()
		for b.Loop() {
			if err := lease.Extend(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func eachClient(b *testing.B, server *redistest.Server, f func(*testing.B, *locker.Client)) {
	for _, c := range clients {
		b.Run("locker/"+c, func(b *testing.B) {
			session, err := ours(c)([]string{server.Addr()}, limits{8, longTimeout})
			if err != nil {
				b.Fatal(err)
			}
			defer session.Close()
			b.ReportAllocs()
			f(b, session.(*lockerSession).client)
		})
	}
}
