// Package virtual runs tests in virtual time with testing/synctest, and avoids a bug of the race detector.
package virtual

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Test is synctest.Test. Under the race detector there is one bubble at a time, and the process has one processor while
// it lives. Parallel tests take turns.
//
// The reason is that all timers of a bubble share one context of the race detector (timers.raceCtx in runtime/time.go
// of Go 1.26). If a channel timer has expired and no goroutine was blocked on it, a goroutine that receives from it,
// selects on it or stops it runs the timer in that context, on its own thread (maybeRunChan). Two such goroutines at
// the same time corrupt the context: SIGSEGV in the detector's own code, or "CHECK failed: tsan_rtl.cpp". This program
// is enough, in a bubble with -race:
//
//	for range 4 {
//		go func() {
//			for range 300_000 {
//				select {
//				case <-time.NewTimer(0).C:
//				default:
//				}
//			}
//		}()
//	}
//
// With one processor no two timers run at the same time, because timers run on the system stack, which is not
// preempted. The detector still finds races, because it compares the order of events and not their times. The
// alternative, code without channel timers, was rejected. It is hard to maintain, and does not apply to the timers of
// client libraries and tests.
//
// On one processor, several bubbles at once are no faster. They evict each other's memory, and that of the detector,
// from the caches: eight bubbles at once took half as much processor time again as one after the other.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if raceEnabled {
		bubble.Lock()
		defer bubble.Unlock()
		// A Cleanup would be too late, because the functions of t may belong to the caller of the bubble.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	synctest.Test(t, f)
}

// bubble is locked while a bubble lives.
var bubble sync.Mutex
