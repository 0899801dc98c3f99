package retry

import (
	"sync"
	"time"
)

// bucket is a token bucket. Its state is the time at which it will be full again, as in the "virtual scheduling" form
// of the generic cell rate algorithm. Each retry takes one token, which moves that time by interval.
type bucket struct {
	interval time.Duration

	mu   sync.Mutex
	full time.Time
}

// take takes a token and returns how long to wait for it. It returns false if the wait would end after latest. A zero
// latest means no limit.
func (b *bucket) take(latest time.Time) (wait time.Duration, ok bool) {
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

// giveBack returns a token that was not used, so that calls that were cancelled do not delay later ones.
func (b *bucket) giveBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = b.full.Add(-b.interval)
}
