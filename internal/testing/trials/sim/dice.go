package sim

import (
	"math/rand/v2"
	"sync"
	"time"
)

// dice are one actor's, so that what one draws does not change what others do.
type dice struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func newDice(seed, actor uint64) *dice { return &dice{rnd: rand.New(rand.NewPCG(seed, 1000+actor))} }

func (d *dice) chance(p float64) bool {
	if p <= 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.Float64() < p
}

// upTo returns something from 0 to less than limit.
func (d *dice) upTo(limit time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.rnd.Int64N(max(1, int64(limit))))
}

func (d *dice) between(a, b time.Duration) time.Duration { return a + d.upTo(b-a) }

func (d *dice) intn(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.IntN(n)
}
