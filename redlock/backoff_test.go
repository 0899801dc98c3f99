package redlock

import (
	"testing"
	"time"
)

// Pauses double from attempt to attempt up to a limit. Two waiters that fail together get different pauses.
func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		failed int
		most   time.Duration
	}{
		{0, 2 * time.Millisecond},
		{1, 4 * time.Millisecond},
		{2, 8 * time.Millisecond},
		{3, 16 * time.Millisecond},
		{4, 32 * time.Millisecond},
		{5, 64 * time.Millisecond},
		{6, 100 * time.Millisecond},
		{7, 100 * time.Millisecond},
		{1000, 100 * time.Millisecond},
	} {
		seen := map[time.Duration]bool{}
		for range 1000 {
			d := backoff(tt.failed)
			if d < tt.most/2 || d >= tt.most {
				t.Fatalf("after %d attempts a pause of %v, want %v to %v", tt.failed, d, tt.most/2, tt.most)
			}
			seen[d] = true
		}
		if len(seen) == 1 {
			t.Errorf("after %d attempts always the same pause", tt.failed)
		}
	}
}
