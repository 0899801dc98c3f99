package retry_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/middleware/retry"
)

// hog takes n tokens from the bucket.
func hog(t *testing.T, l locker.Locker, n int) {
	t.Helper()
	for i := range n {
		go func() { _, _ = l.Lock(t.Context(), fmt.Sprint("hog", i)) }()
	}
}

// The number of retries depends on PerSecond, not on the number of callers. No caller fails that has enough time.
func TestPerSecondBoundsAStorm(t *testing.T) {
	const callers, perSecond, outage = 1000, 50, 30 * time.Second
	bubble(t, with(retry.PerSecond(perSecond), retry.For(5*time.Minute)), func(t *testing.T, s *store, l locker.Locker) {
		up := time.Now().Add(outage)
		s.on(func(op string, _ int, next func() error) error {
			if time.Now().Before(up) {
				return errDown
			}
			return next()
		})
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() { mustUnlock(t, mustLock(t, l, fmt.Sprint(i))) })
		}
		wg.Wait()
		retries := s.calls["acquire"][callers:]
		for i, at := range retries { // in every second
			n := 0
			for _, later := range retries[i:] {
				if later.Sub(at) >= time.Second {
					break
				}
				n++
			}
			if n > 2*perSecond+1 { // those of a full bucket, and those of that second
				t.Fatalf("%d retries in a second", n)
			}
		}
		if n, most := len(retries), perSecond*int(outage/time.Second+1)+callers; n > most {
			t.Errorf("%d retries, want %d at most", n, most)
		}
	})
}

// A call does not wait for a turn that would come too late. A turn that is no longer needed goes to other calls.
func TestUnusedTurnsReturnToTheBucket(t *testing.T) {
	bubble(t, with(retry.PerSecond(1), retry.For(10*time.Second)), func(t *testing.T, s *store, l locker.Locker) {
		s.on(down)
		ctx, cancel := context.WithCancel(t.Context())
		var gaveUp atomic.Int32
		for i := range 1000 {
			go func() {
				_, _ = l.Lock(ctx, fmt.Sprint(i))
				gaveUp.Add(1)
			}()
		}
		time.Sleep(time.Second)
		if n := gaveUp.Load(); n < 980 { // ten turns in ten seconds, and a few on the way
			t.Errorf("%d of 1000 have given up, with ten turns to come", n)
		}
		cancel()
		time.Sleep(time.Second)
		s.on(failing(1))
		start := time.Now()
		mustUnlock(t, mustLock(t, l, "next"))
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("turns that nobody wants any more cost the next caller %v", took)
		}
	})
}
