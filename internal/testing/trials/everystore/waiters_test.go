package everystore

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

const (
	waiters   = 16
	handOvers = 200
	crowd     = 64
	alone     = 200
	// watched is for how long requests of a waiter are counted. No lock is renewed, and none ends, in that time.
	watched = 30 * time.Second
)

// BenchmarkWaiters is what a Client costs that waits, in requests per minute, how long it takes from the call of Unlock
// until the next of 16 Clients has the lock, and how long a Client with one caller waits beside another one with 64. It
// measures once, whatever b.N is.
func BenchmarkWaiters(b *testing.B) {
	for name, start := range meters() {
		b.Run(name, func(b *testing.B) {
			url, _ := start(b)
			gaps := handOver(b, openClients(b, url, waiters))
			b.ReportMetric(float64(gaps[len(gaps)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(gaps[len(gaps)*99/100].Microseconds())/1000, "p99-ms")
			url, _ = start(b)
			waits := beside(b, openClients(b, url, 2))
			b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds())/1000, "alone-p99-ms")
			url, requests := start(b) // without what the others still send
			b.ReportMetric(waiting(b, openClients(b, url, 2), requests), "requests/min")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// handOver lets clients have one lock in turn, none twice in succession, and returns how long each has waited for it
// since the one before has called Unlock, in order.
func handOver(b *testing.B, clients []locker.Locker) (gaps []time.Duration) {
	ctx, enough := context.WithCancel(b.Context())
	defer enough()
	var mu sync.Mutex
	var freed time.Time
	taken := make(chan struct{}) // closed when the next one has the lock
	var all sync.WaitGroup
	for _, l := range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				lease, err := l.Lock(ctx, "hand-over")
				if err != nil {
					if ctx.Err() == nil {
						b.Error(err)
					}
					return
				}
				mu.Lock()
				if !freed.IsZero() {
					gaps = append(gaps, time.Since(freed))
				}
				if len(gaps) == handOvers {
					enough()
				}
				close(taken)
				taken = make(chan struct{})
				other := taken
				mu.Unlock()
				<-time.After(time.Millisecond)
				mu.Lock()
				freed = time.Now()
				mu.Unlock()
				if err := lease.Unlock(context.WithoutCancel(ctx)); err != nil {
					b.Error(err)
				}
				select {
				case <-other:
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
	slices.Sort(gaps)
	return gaps
}

// beside lets callers of one of two clients do nothing but lock, who may hand the lock over to each other, and returns
// how long the only caller of the other one has waited each time, in order.
func beside(b *testing.B, clients []locker.Locker) (waits []time.Duration) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	hold := func(context.Context) error {
		<-time.After(time.Millisecond)
		return nil
	}
	var all sync.WaitGroup
	for range crowd {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := locker.Do(ctx, clients[0], "beside", hold); err != nil && ctx.Err() == nil {
					b.Error(err)
					return
				}
			}
		})
	}
	for range alone {
		asked := time.Now()
		err := locker.Do(ctx, clients[1], "beside", func(ctx context.Context) error {
			waits = append(waits, time.Since(asked))
			return hold(ctx)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	all.Wait()
	slices.Sort(waits)
	return waits
}

// waiting returns how many requests per minute a client makes that waits for a lock, beyond what all send anyway, such
// as the PINGs of drivers.
func waiting(b *testing.B, clients []locker.Locker, requests func() float64) float64 {
	lease, err := clients[0].Lock(b.Context(), "waiting", locker.TTL(time.Hour))
	if err != nil {
		b.Fatal(err)
	}
	began, sent := time.Now(), requests()
	<-time.After(watched / 3)
	idle := (requests() - sent) / time.Since(began).Minutes()
	began, sent = time.Now(), requests()
	ctx, cancel := context.WithTimeout(b.Context(), watched)
	defer cancel()
	if _, err := clients[1].Lock(ctx, "waiting", locker.TTL(time.Hour)); err == nil {
		b.Error("two clients have the lock")
	}
	perMinute := (requests() - sent) / time.Since(began).Minutes()
	if err := lease.Unlock(b.Context()); err != nil {
		b.Error(err)
	}
	return perMinute - idle
}
