package redlock

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// memory is what an attempt learns for the next ones on the same key: how far counters have got, and that contenders
// have split the vote. It is advice: safety does not depend on it, so it may mix up keys, and it needs no lock and no
// clean-up.
type memory struct {
	places [256]struct {
		counter atomic.Uint64
		ordered atomic.Int64 // Unix time in ns until which attempts ask in order
	}
}

// orderFor is how long after a split vote attempts ask one agreed node first. That costs a round trip more, and no vote
// is split while that node is up.
const orderFor = time.Second

var seed = maphash.MakeSeed()

// recall returns the node to ask first, or -1 to ask all at once, and the largest counter seen.
func (m *memory) recall(key string, n int) (first int, counter uint64) {
	p := &m.places[maphash.String(seed, key)%uint64(len(m.places))]
	first = -1
	if until := p.ordered.Load(); until != 0 && time.Now().UnixNano() < until {
		first = agreed(key, n)
	}
	return first, p.counter.Load()
}

// note remembers the outcome of a lost attempt.
func (m *memory) note(key string, split bool, counter uint64) {
	p := &m.places[maphash.String(seed, key)%uint64(len(m.places))]
	if split {
		p.ordered.Store(time.Now().Add(orderFor).UnixNano())
	}
	for {
		old := p.counter.Load()
		if counter <= old || p.counter.CompareAndSwap(old, counter) {
			return
		}
	}
}

// agreed returns the node that all clients take for the first one: FNV-1a of the key, which needs no seed.
func agreed(key string, n int) int {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(n))
}
