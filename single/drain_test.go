package single_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// A thousand leases and a thousand callers that wait, on a real server: all are told at once, no lease is lost, and
// nothing is left, neither a lock nor a place in a queue.
func TestDrainOfThousandsOnAServer(t *testing.T) {
	anyDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		const n, foreign = 1000, 10
		s := redistest.Start(t)
		c, other := single.New(build(t, s.Addr())), closing(t, single.New(build(t, s.Addr())))
		leases, held := make([]locker.Lease, n), make([]locker.Lease, foreign)
		var all sync.WaitGroup
		acquire := func(l *locker.Client, lease *locker.Lease, key string) {
			all.Go(func() {
				var err error
				if *lease, err = l.TryLock(t.Context(), key, locker.TTL(time.Minute)); err != nil {
					t.Error(err)
				}
			})
		}
		for i := range leases {
			acquire(c, &leases[i], fmt.Sprint("held", i))
		}
		for i := range held {
			acquire(other, &held[i], fmt.Sprint("foreign", i))
		}
		all.Wait()
		errs := make(chan error, n)
		for i := range n {
			key := fmt.Sprint("foreign", i%foreign)
			if i%2 == 0 {
				key = fmt.Sprint("held", i)
			}
			go func() {
				_, err := c.Lock(t.Context(), key)
				errs <- err
			}()
		}
		eventually(t, 30*time.Second, "callers that wait in the queues of the server", func() bool {
			return s.Cmd(t, "EXISTS", "{lock:held0}:lockqueue", "{lock:foreign1}:lockqueue") == int64(2)
		})
		ended, end := context.WithCancel(t.Context())
		end()
		start := time.Now()
		if got := c.Drain(ended); len(got) != n {
			t.Errorf("Drain returned %d leases", len(got))
		}
		for range n {
			if err := <-errs; !errors.Is(err, locker.ErrDraining) {
				t.Errorf("a caller got %v", err)
			}
		}
		t.Logf("%d callers were told within %v", n, time.Since(start))
		for _, l := range leases {
			if err := l.Err(); err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				if err := l.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		if got := c.Drain(t.Context()); len(got) > 0 {
			t.Errorf("Drain returned %d leases", len(got))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("drained after %v", time.Since(start))
		all.Wait()
		for _, l := range held {
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		eventually(t, 30*time.Second, "nothing to be left", func() bool { return len(s.Left(t)) == 0 })
	})
}
