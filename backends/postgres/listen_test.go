package postgres_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/lockertrace"
)

// A lock that is released while a waiter has not read the answer yet, that another owner has it, is told of
// nevertheless. A poll wakes a waiter only if the machine stands still for a second.
func TestReleaseDuringTheFirstRequest(t *testing.T) {
	t.Parallel()
	const handOvers, polled = 400, 4
	s := migrated(t)
	var all sync.WaitGroup
	var n, polls atomic.Int64
	ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Woken: func(w lockertrace.Wake) {
		if w.Reason == lockertrace.WakePoll {
			polls.Add(1)
		}
	}})
	for range 2 {
		l := postgres.New(pool(t, s.URL("postgres")))
		t.Cleanup(func() { _ = l.Close() })
		all.Go(func() {
			for n.Add(1) <= handOvers && polls.Load() <= polled {
				lease, err := l.Lock(ctx, "k", locker.NoRenewal())
				if err == nil {
					err = lease.Unlock(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if got := polls.Load(); got > polled {
		t.Errorf("%d waiters had to poll", got)
	}
}
