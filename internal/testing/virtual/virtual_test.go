package virtual_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/virtual"
)

// With more than one processor, this test crashes the race detector and so ends the process.
func TestExpiredTimersReadAtOnce(t *testing.T) {
	virtual.Test(t, func(*testing.T) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20_000 {
					select {
					case <-time.NewTimer(0).C:
					default:
					}
				}
			})
		}
		wg.Wait()
	})
}

// Under the race detector, bubbles of parallel tests take turns on one processor. Afterwards there are as many
// processors as before.
func TestBubblesTakeTurns(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("bubbles", func(t *testing.T) {
		var bubbles atomic.Int32
		for range 3 {
			t.Run("parallel", func(t *testing.T) {
				t.Parallel()
				virtual.Test(t, func(t *testing.T) {
					defer bubbles.Add(-1)
					if n := bubbles.Add(1); n > 1 && virtual.RaceEnabled {
						t.Errorf("%d bubbles at once", n)
					}
					if now := runtime.GOMAXPROCS(0); now > 1 && virtual.RaceEnabled {
						t.Errorf("%d processors", now)
					}
					for range 1000 { // the others get the processor
						time.Sleep(time.Hour)
						runtime.Gosched()
					}
				})
			})
		}
	})
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("%d processors, there were %d", now, before)
	}
}
