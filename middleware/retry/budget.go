package retry

import (
	"sync"
	"time"
)

// budget is a token bucket, kept as one moment (the "virtual scheduling" of the generic cell rate algorithm): when it will
// be full again. A bucket holds a burst's worth, and every retry moves that moment by the time that one takes to refill.
type budget struct {
	interval time.Duration

	mu   sync.Mutex
	full time.Time
}

// take returns how long to wait for a retry's turn, or false if that comes after latest. Zero: never too late.
func (b *budget) take(latest time.Time) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	full := b.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(b.interval)
	turn := full.Add(-burst)
	if !latest.IsZero() && turn.After(latest) {
		return 0, false
	}
	b.full = full
	return max(0, turn.Sub(now)), true
}

// giveBack is for a turn that is not wanted any more: otherwise calls that were cancelled would hold up those that come.
func (b *budget) giveBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = b.full.Add(-b.interval)
}
