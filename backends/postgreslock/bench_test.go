package postgreslock_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgreslock"
)

// cycle locks a key, and unlocks it.
type cycle func(ctx context.Context, key string) error

// contenders are this package, and what programs write by hand with advisory locks: of a session, on a connection that
// the holder keeps, and of a transaction.
var contenders = map[string]func(b *testing.B, p *pgxpool.Pool) cycle{
	"locker": func(b *testing.B, p *pgxpool.Pool) cycle {
		l := postgreslock.New(p)
		b.Cleanup(func() { _ = l.Close() })
		return func(ctx context.Context, key string) error {
			lease, err := l.Lock(ctx, key, locker.Label(""))
			if err != nil {
				return err
			}
			return lease.Unlock(ctx)
		}
	},
	"pg_advisory_lock": func(_ *testing.B, p *pgxpool.Pool) cycle {
		return func(ctx context.Context, key string) error {
			conn, err := p.Acquire(ctx)
			if err != nil {
				return err
			}
			defer conn.Release()
			if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", number(key)); err != nil {
				return err
			}
			_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", number(key))
			return err
		}
	},
	"pg_advisory_xact_lock": func(_ *testing.B, p *pgxpool.Pool) cycle {
		return func(ctx context.Context, key string) error {
			tx, err := p.Begin(ctx)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", number(key)); err != nil {
				return err
			}
			return tx.Commit(ctx)
		}
	},
}

func number(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return int64(h.Sum64())
}

// BenchmarkCycle measures an acquisition and a release: with keys of each goroutine's own, and with one key for all.
// All contenders have as many connections. The server flushes its log as in production.
func BenchmarkCycle(b *testing.B) {
	s := migrated(b, "fsync=on")
	for _, n := range []int{1, 16, 128} {
		for _, keys := range []string{"own", "one"} {
			if n == 1 && keys == "one" {
				continue
			}
			for name, contender := range contenders {
				b.Run(fmt.Sprintf("goroutines=%d/keys=%s/%s", n, keys, name), func(b *testing.B) {
					do := contender(b, pool(b, s.URL("postgres")+"&pool_max_conns=16"))
					var ids atomic.Int64
					b.SetParallelism(max(1, n/runtime.GOMAXPROCS(0)))
					b.RunParallel(func(pb *testing.PB) {
						key := "one"
						if keys == "own" {
							key = strconv.FormatInt(ids.Add(1), 10)
						}
						for pb.Next() {
							if err := do(b.Context(), key); err != nil {
								b.Error(err)
							}
						}
					})
				})
			}
		}
	}
}

// BenchmarkHandOver measures a hand-over to a waiter whose session has had locks before, and to one whose session is
// new, as that of a process that has just been started. The figures are medians. 50 of each: -benchtime 50x.
func BenchmarkHandOver(b *testing.B) {
	s := migrated(b, "fsync=on")
	open := func(b *testing.B) *locker.Client { return postgreslock.New(pool(b, s.URL("postgres"))) }
	for _, session := range []string{"known", "new"} {
		b.Run(session, func(b *testing.B) {
			holder, waiter := open(b), open(b)
			var took []time.Duration
			for i := range b.N + 1 {
				if session == "new" {
					_ = waiter.Close()
					waiter = open(b)
				}
				d := handOver(b, holder, waiter)
				if i > 0 { // the first one meets a new session in each case
					took = append(took, d)
				}
			}
			_, _ = holder.Close(), waiter.Close()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/hand-over")
		})
	}
}

// handOver returns the time from the release by one Client until the other one, which waits, has the lock.
func handOver(b *testing.B, from, to *locker.Client) time.Duration {
	lease, err := from.Lock(b.Context(), "handed over")
	if err != nil {
		b.Fatal(err)
	}
	begun := make(chan time.Time, 1)
	waiting := func() {
		defer close(begun)
		next, err := to.Lock(b.Context(), "handed over")
		if err != nil {
			b.Error(err)
			return
		}
		begun <- time.Now()
		_ = next.Unlock(b.Context())
	}
	go waiting()
	time.Sleep(300 * time.Millisecond) // until the waiter listens
	start := time.Now()
	if err := lease.Unlock(b.Context()); err != nil {
		b.Fatal(err)
	}
	at, ok := <-begun
	if !ok {
		b.FailNow()
	}
	<-begun // closed when it has unlocked
	return at.Sub(start)
}
