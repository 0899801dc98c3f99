package script_test

import (
	"math"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// A key that is to live for ever, nearly, is held, and not free at once.
func TestSpansFitIntoADuration(t *testing.T) {
	const most = 100 * 365 * 24 * time.Hour
	for ms, want := range map[int64]time.Duration{
		math.MinInt64: 0, -1: 0, 0: 0, 1500: 1500 * time.Millisecond,
		1e13: most, 2e13: most, math.MaxInt64 / 1000000: most, math.MaxInt64: most,
	} {
		got := acquired(t, []drivers.Reply{int64(0), ms, int64(0), "owner", ""})
		if got.Status != script.Waiting || got.Left != want {
			t.Errorf("%d ms are %v, want %v", ms, got, want)
		}
	}
}

// PTTL answers 0 of a key that is in its last millisecond.
func TestLastMillisecondIsLeft(t *testing.T) {
	p, err := script.ReadPosition([]drivers.Reply{int64(0), int64(0), int64(0), int64(1), int64(1)})
	if err != nil || p.Left != time.Millisecond {
		t.Errorf("%v, %v", p, err)
	}
}
