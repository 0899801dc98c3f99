package everystore

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// BenchmarkStores is the time of an acquisition and its release on every kind of store: by one goroutine, by 128 with a
// key each, and by two Clients that hand one lock to each other.
func BenchmarkStores(b *testing.B) {
	b.Setenv(etcdtest.NoFsync, "false")
	stores := storeurl.Start(migrate)
	stores["Redis, appendfsync always"] = func(tb testing.TB) string {
		return "redis://" + redistest.Start(tb, "--appendonly", "yes", "--appendfsync", "always").Addr()
	}
	for name, start := range stores {
		b.Run(name, func(b *testing.B) {
			url := start(b)
			for _, goroutines := range []int{1, 128} {
				b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
					clients := openClients(b, url, 1)
					cycles(b, goroutines, func(ctx context.Context, i int) error {
						return cycle(ctx, clients[0], "k"+strconv.Itoa(i))
					})
				})
			}
			b.Run("hand-over", func(b *testing.B) {
				clients := openClients(b, url, 2)
				cycles(b, len(clients), func(ctx context.Context, i int) error { return cycle(ctx, clients[i], "k") })
			})
		})
	}
}

func openClients(b *testing.B, url string, n int) (clients []locker.Locker) {
	for range n {
		l, err := config.Open(b.Context(), url)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = io.Closer(l).Close() })
		if err := cycle(b.Context(), l, "first"); err != nil {
			b.Fatal(err)
		}
		clients = append(clients, l)
	}
	return clients
}

func cycle(ctx context.Context, l locker.Locker, key string) error {
	lease, err := l.Lock(ctx, key)
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

// cycles divides b.N calls of do among goroutines.
func cycles(b *testing.B, goroutines int, do func(ctx context.Context, i int) error) {
	var all sync.WaitGroup
	var n atomic.Int64
	b.ResetTimer()
	for i := range goroutines {
		all.Go(func() {
			for n.Add(1) <= int64(b.N) {
				if err := do(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
}
