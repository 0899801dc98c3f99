package tick_test

import (
	"testing"
	"time"

	"github.com/golocker/locker/internal/core/tick"
)

func TestNames(t *testing.T) {
	at := time.Date(2026, 11, 22, 6, 0, 0, 5e6, time.FixedZone("", 3600))
	for _, job := range []string{"report", "a@b", "@", "x@2026-11-22T05:00:00Z"} {
		for _, at := range []time.Time{at, at.Truncate(time.Second)} {
			got, when, ok := tick.Parse(tick.Name(job, at))
			if !ok || got != job || !when.Equal(at) {
				t.Errorf("%s at %v: %q, %v, %v", job, at, got, when, ok)
			}
		}
	}
	for _, lock := range []string{
		"report", "", "@2026-11-22T05:00:00Z", "report@2026-11-22T05:00:00.100Z", "report@2026-11-22T05:00:00+01:00",
		"{report@2026-11-22T05:00:00Z}:0",
	} {
		if job, at, ok := tick.Parse(lock); ok {
			t.Errorf("%q is the tick %v of %q", lock, at, job)
		}
	}
}
