// Package virtual runs tests in virtual time with testing/synctest, and avoids a bug of the race detector.
package virtual

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Test is synctest.Test. Under the race detector the process has one processor for as long as any bubble lives.
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
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if raceEnabled {
		oneProcessor()
		// A Cleanup would be too late, because the functions of t may belong to the caller of the bubble.
		defer asBefore()
	}
	synctest.Test(t, f)
}

// Bubbles of parallel tests overlap. The first reduces the processors to one, and the last restores them.
var (
	mu      sync.Mutex
	bubbles int
	before  int
)

func oneProcessor() {
	mu.Lock()
	defer mu.Unlock()
	if bubbles++; bubbles == 1 {
		before = runtime.GOMAXPROCS(1)
	}
}

func asBefore() {
	mu.Lock()
	defer mu.Unlock()
	if bubbles--; bubbles == 0 {
		runtime.GOMAXPROCS(before)
	}
}
