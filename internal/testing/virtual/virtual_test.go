package virtual_test

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
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

func TestProcessorsComeBack(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("bubbles", func(t *testing.T) {
		for range 3 {
			t.Run("overlapping", func(t *testing.T) {
				t.Parallel()
				virtual.Test(t, func(t *testing.T) {
					time.Sleep(time.Hour)
					synctest.Wait()
				})
			})
		}
	})
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("%d processors, there were %d", now, before)
	}
}
