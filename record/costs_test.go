package record_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/recordstore"
	ticks "github.com/golocker/locker/once"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// counting counts the requests of one process.
type counting struct {
	service
	reads, writes atomic.Int64
}

func (c *counting) Get(ctx context.Context, name string) ([]byte, string, error) {
	c.reads.Add(1)
	return c.service.Get(ctx, name)
}

func (c *counting) Create(ctx context.Context, name string, text []byte) (string, error) {
	c.writes.Add(1)
	return c.service.Create(ctx, name, text)
}

func (c *counting) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	c.writes.Add(1)
	return c.service.Replace(ctx, name, version, text)
}

// What an hour costs in a store that tells its time, as rows of the table in docs/backends/README.md:
//
//	go test -run TestCostsOfAnHour -v ./record
//
// A million reads cost $0.40 in S3 and $0.125 in DynamoDB, and as many writes $5 and $0.625.
func TestCostsOfAnHour(t *testing.T) {
	type call = func(t *testing.T, l *locker.Client)
	plain := func(l *locker.Client) locker.Locker { return l }
	permits := func(l *locker.Client) locker.Locker { return semaphore.New(l, 10) }
	shared := func(l *locker.Client) locker.Locker { return rwlock.New(l).Shared() }
	exclusive := func(l *locker.Client) locker.Locker { return rwlock.New(l).Exclusive() }
	holds := func(of func(l *locker.Client) locker.Locker, opts ...locker.Option) call {
		return func(t *testing.T, l *locker.Client) {
			if _, err := of(l).TryLock(t.Context(), "k", opts...); err != nil {
				t.Error(err)
			}
		}
	}
	long := []locker.Option{locker.TTL(10 * time.Hour), locker.NoRenewal()}
	waits := func(of func(l *locker.Client) locker.Locker) call {
		return func(t *testing.T, l *locker.Client) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, _ = of(l).Lock(ctx, "k")
		}
	}
	cycles := func(of func(l *locker.Client) locker.Locker) call {
		return func(t *testing.T, l *locker.Client) {
			for range 100 {
				lease, err := of(l).Lock(t.Context(), "k")
				if err == nil {
					err = lease.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
				time.Sleep(30 * time.Second)
			}
		}
	}
	runs := func(late time.Duration, want ticks.Outcome) call {
		return func(t *testing.T, l *locker.Client) {
			first := time.Now().Truncate(time.Minute).Add(time.Minute)
			for n := range 60 {
				tick := first.Add(time.Duration(n) * time.Minute)
				time.Sleep(time.Until(tick.Add(late)))
				wantTick(t, l, tick, want)
			}
		}
	}
	for _, kind := range []struct {
		name   string
		others call // what other processes do
		call   call
		reads  int64 // at most
		writes int64 // at most
	}{
		{"a lock is held, TTL 10s", nil, holds(plain), 1, 1100},
		{"a lock is held, TTL 1m", nil, holds(plain, locker.TTL(time.Minute)), 1, 185},
		{"a lock is held, TTL 10m", nil, holds(plain, locker.TTL(10*time.Minute)), 1, 20},
		{"one of 10 permits is held", nil, holds(permits), 1, 1100},
		{"a shared lock is held", nil, holds(shared), 1, 1100},
		{"an exclusive lock is held", nil, holds(exclusive), 1, 1100},
		{"a wait for a lock", holds(plain, long...), waits(plain), 5200, 1},
		{"a wait for one of 10 permits", func(t *testing.T, l *locker.Client) {
			for range 10 {
				holds(permits, long...)(t, l)
			}
		}, waits(permits), 9000, 1100},
		{"a wait for a shared lock", holds(exclusive, long...), waits(shared), 12500, 1100},
		{"a wait for an exclusive lock", holds(shared, long...), waits(exclusive), 5200, 1100},
		{"a lock, 100 times", nil, cycles(plain), 1, 201},
		{"a permit, 100 times", nil, cycles(permits), 1, 201},
		{"a shared lock, 100 times", nil, cycles(shared), 1, 201},
		{"an exclusive lock, 100 times", nil, cycles(exclusive), 1, 201},
		{"60 ticks are run", nil, runs(0, ticks.Ran), 120, 60},
		{"60 ticks are run elsewhere", func(t *testing.T, l *locker.Client) {
			go runs(0, ticks.Ran)(t, l)
		}, runs(5*time.Second, ticks.Elsewhere), 60 * 8, 0},
	} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			s.Latency = 5 * time.Millisecond
			one := service{s, func() time.Duration { return 0 }, nil}
			if kind.others != nil {
				kind.others(t, client(t, one))
			}
			counts := &counting{service: one}
			end := time.Now().Add(time.Hour)
			l := client(t, counts)
			kind.call(t, l)
			time.Sleep(time.Until(end))
			reads, writes := counts.reads.Load(), counts.writes.Load()
			row := []string{kind.name, fmt.Sprint(reads), fmt.Sprint(writes)}
			for _, price := range [][2]float64{{0.40, 5}, {0.125, 0.625}} {
				dollars := (float64(reads)*price[0] + float64(writes)*price[1]) / 1e6
				row = append(row, fmt.Sprintf("%.5f", dollars))
			}
			t.Logf("| %s |", strings.Join(row, " | "))
			if reads > kind.reads || writes > kind.writes {
				t.Errorf("%s: more than %d reads and %d writes", kind.name, kind.reads, kind.writes)
			}
		})
	}
}
