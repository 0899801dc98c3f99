package redlock

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/internal/redis/node"
)

// turn is a position in the queue of one node. All clients use the same node as long as it is up. N queues would have N
// orders, so a queue cannot be the lock. It says which waiter asks the quorum next, and a waiter that is not notified
// in time asks anyway. Safety does not depend on turns: a lost, wrong or doubled turn costs a split vote. See
// docs/adr/0014-waiters-queue-on-the-server.md.
type turn struct {
	node int
	*node.Turn
}

// keeper returns the node that keeps the queue for key. If there is a turn, that is the node of the turn.
func (b *majority) keeper(key string, t *turn) int {
	if t != nil {
		return t.node
	}
	return b.hints.fit(key, agreed(key, len(b.nodes)), len(b.nodes))
}

// on returns the turn's ID if node i keeps the turn, or "".
func (t *turn) on(i int) string {
	if t == nil || t.node != i {
		return ""
	}
	return t.ID()
}

// hints are what an attempt learns for later attempts on the same key: the largest counter, and whether contenders have
// split the vote. Hints are advice. Safety does not depend on them, so different keys may share a slot, and hints need
// no mutex and no clean-up.
type hints struct {
	slots [256]hint
}

// hint is what is known about the keys of one slot. Times are Unix times in ns.
type hint struct {
	counter atomic.Uint64
	ordered atomic.Int64 // until when attempts ask one node first
	crowded atomic.Int64 // until when callers queue before they ask
	blind   atomic.Int64 // until when the nodes of unfits do not keep the queue
	unfits  atomic.Uint64
}

func (hs *hints) of(key string) *hint {
	return &hs.slots[maphash.String(seed, key)%uint64(len(hs.slots))]
}

// orderFor is how long after a split vote attempts ask one agreed node first. That costs one more round trip, and no
// vote is split while that node is up.
const orderFor = time.Second

var seed = maphash.MakeSeed()

// recall returns the node to ask first, or -1 to ask all at once, and the largest counter seen.
func (hs *hints) recall(key string, n int) (first int, counter uint64) {
	h := hs.of(key)
	first = -1
	if until := h.ordered.Load(); until != 0 && time.Now().UnixNano() < until {
		first = agreed(key, n)
	}
	return first, h.counter.Load()
}

// note remembers what an attempt has seen: whether the vote was split, and the largest counter.
func (hs *hints) note(key string, split bool, counter uint64) {
	h := hs.of(key)
	if split {
		h.ordered.Store(time.Now().Add(orderFor).UnixNano())
	}
	for {
		old := h.counter.Load()
		if counter <= old || h.counter.CompareAndSwap(old, counter) {
			return
		}
	}
}

// converged notes that a majority has granted with the same counter, so that no hint about counters is needed. A node
// grants without a hint at less cost.
func (hs *hints) converged(key string) {
	if c := &hs.of(key).counter; c.Load() != 0 {
		c.Store(0)
	}
}

// crowdedFor is how long after somebody has waited for a key callers queue before they ask. A caller that asks at once,
// just when the lock changes hands, overtakes the waiters and splits the vote. To queue costs a lone caller one round
// trip.
const crowdedFor = time.Second

// contended reports whether somebody has waited for key lately. This client knows it if it has waited itself, or if a
// release has said so: a waiter marks the lock on the node that keeps the queue, whether it can be notified or not.
func (hs *hints) contended(key string) bool {
	until := hs.of(key).crowded.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// contend notes that somebody waits for key.
func (hs *hints) contend(key string) {
	hs.of(key).crowded.Store(time.Now().Add(crowdedFor).UnixNano())
}

// blindFor is how long a node does not keep the queue after its answer about the lock was wrong. Such a node has a key
// that a dead owner or another program has left there, or it has lost one.
const blindFor = 10 * time.Second

// unfit notes that node i and a majority disagree on whether key is locked.
func (hs *hints) unfit(key string, i int) {
	h := hs.of(key)
	if time.Now().UnixNano() >= h.blind.Load() {
		h.unfits.Store(0)
	}
	h.unfits.Or(uint64(only(i)))
	h.blind.Store(time.Now().Add(blindFor).UnixNano())
}

// fit returns node i, or the next node that may keep the queue.
func (hs *hints) fit(key string, i, n int) int {
	h := hs.of(key)
	unfits := nodeSet(h.unfits.Load())
	if unfits&allOf(n) == allOf(n) || time.Now().UnixNano() >= h.blind.Load() {
		return i
	}
	for unfits.has(i) {
		i = (i + 1) % n
	}
	return i
}

// agreed returns the node that all clients ask first: the FNV-1a hash of the key, which needs no seed, modulo n.
func agreed(key string, n int) int {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(n))
}
