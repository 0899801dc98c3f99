package record_test

import (
	"context"
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

// counting counts the requests of one process, and for how many units DynamoDB bills: a read has one for each 4 KiB of
// the item, and a write one for each KiB.
type counting struct {
	service
	reads, writes         atomic.Int64
	readUnits, writeUnits atomic.Int64
}

func (c *counting) Get(ctx context.Context, name string) (text []byte, version string, err error) {
	c.reads.Add(1)
	text, version, err = c.service.Get(ctx, name)
	c.readUnits.Add(max(1, (int64(len(text))+4095)/4096))
	return text, version, err
}

func (c *counting) Create(ctx context.Context, name string, text []byte) (string, error) {
	c.writesText(text)
	return c.service.Create(ctx, name, text)
}

func (c *counting) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	c.writesText(text)
	return c.service.Replace(ctx, name, version, text)
}

func (c *counting) writesText(text []byte) {
	c.writes.Add(1)
	c.writeUnits.Add((int64(len(text)) + 1023) / 1024)
}

// What an hour costs in a store that tells its time, as rows of the table in docs/backends/README.md:
//
//	go test -run TestCostsOfAnHour -v ./record
//
// A million reads cost $0.40 in S3, and as many units of them $0.125 in DynamoDB, and writes $5 and $0.625.
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
		n      int  // of other processes
		others call // what each of them does
		call   call
		reads  int64 // at most
		writes int64 // at most
	}{
		{"a lock is held, TTL 10s", 0, nil, holds(plain), 1, 1100},
		{"a lock is held, TTL 1m", 0, nil, holds(plain, locker.TTL(time.Minute)), 1, 185},
		{"a lock is held, TTL 10m", 0, nil, holds(plain, locker.TTL(10*time.Minute)), 1, 20},
		{"four locks of LockAll are held", 0, nil, func(t *testing.T, l *locker.Client) {
			if _, err := locker.TryLockAll(t.Context(), l, []string{"{k}:1", "{k}:2", "{k}:3", "{k}:4"}); err != nil {
				t.Error(err)
			}
		}, 4, 4400},
		{"one of 10 permits is held", 0, nil, holds(permits), 1, 1100},
		{"one of 10 permits is held, beside 3 others", 3, holds(permits), holds(permits), 1300, 1300},
		{"a shared lock is held", 0, nil, holds(shared), 1, 1100},
		{"a shared lock is held, beside 3 others", 3, holds(shared), holds(shared), 1300, 1300},
		{"an exclusive lock is held", 0, nil, holds(exclusive), 1, 1100},
		{"a wait for a lock", 1, holds(plain, long...), waits(plain), 5200, 1},
		{"a wait for one of 10 permits", 10, holds(permits, long...), waits(permits), 9000, 1100},
		{"a wait for a shared lock", 1, holds(exclusive, long...), waits(shared), 12500, 1100},
		{"a wait for an exclusive lock", 1, holds(shared, long...), waits(exclusive), 5200, 1100},
		{"a lock, 100 times", 0, nil, cycles(plain), 1, 201},
		{"a permit, 100 times", 0, nil, cycles(permits), 1, 201},
		{"a shared lock, 100 times", 0, nil, cycles(shared), 1, 201},
		{"an exclusive lock, 100 times", 0, nil, cycles(exclusive), 1, 201},
		{"60 ticks are run", 0, nil, runs(0, ticks.Ran), 120, 60},
		{"60 ticks are run elsewhere", 1, func(t *testing.T, l *locker.Client) {
			go runs(0, ticks.Ran)(t, l)
		}, runs(5*time.Second, ticks.Elsewhere), 60 * 8, 0},
	} {
		if testing.Short() && (strings.HasPrefix(kind.name, "a wait") || strings.Contains(kind.name, "exclusive")) {
			continue // an hour of these takes seconds
		}
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			s.Latency = 5 * time.Millisecond
			one := service{s, func() time.Duration { return 0 }, nil}
			for range kind.n {
				kind.others(t, client(t, one))
			}
			counts := &counting{service: one}
			end := time.Now().Add(time.Hour)
			l := client(t, counts)
			kind.call(t, l)
			time.Sleep(time.Until(end))
			reads, writes := counts.reads.Load(), counts.writes.Load()
			s3 := (float64(reads)*0.40 + float64(writes)*5) / 1e6
			dynamo := (float64(counts.readUnits.Load())*0.125 + float64(counts.writeUnits.Load())*0.625) / 1e6
			t.Logf("| %s | %d | %d | %.5f | %.5f |", kind.name, reads, writes, s3, dynamo)
			if reads > kind.reads || writes > kind.writes {
				t.Errorf("%s: more than %d reads and %d writes", kind.name, kind.reads, kind.writes)
			}
		})
	}
}
