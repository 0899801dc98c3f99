package redlock

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// hints are what an attempt learns for the next ones on the same key: how far counters have got, and that contenders
// have split the vote. They are advice: safety does not depend on them, so they may mix up keys, and need no lock and
// no clean-up.
type hints struct {
	slots [256]hint
}

// hint is what is known of the keys of one slot.
type hint struct {
	counter atomic.Uint64
	ordered atomic.Int64 // Unix time in ns until which attempts ask in order
	crowded atomic.Int64 // the same, until which those who wait queue up before they ask
	// When this client has released a lock last, which one that was, and when it was sure last that nobody else waits for
	// it.
	released, checked atomic.Int64
	last              atomic.Uint64
	blind             atomic.Int64 // the same, until which the nodes of unfits do not keep the queue
	unfits            atomic.Uint64
}

func (hs *hints) of(key string) *hint { return hs.at(hashOf(key)) }

func (hs *hints) at(hash uint64) *hint { return &hs.slots[hash%uint64(len(hs.slots))] }

func hashOf(key string) uint64 { return maphash.String(seed, key) }

// orderFor is how long after a split vote attempts ask one agreed node first. That costs a round trip more, and no vote
// is split while that node is up.
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

// note remembers the outcome of a lost attempt.
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

// crowdedFor is how long after somebody waited for a key those who want it take their turn before they ask: whoever
// asks at once, just when the lock changes hands, pushes in and splits the vote. It costs a lone caller a round trip.
const crowdedFor = time.Second

// checkEvery is how often a client that locks again and again finds out whether others have begun to wait. Its releases
// say so where somebody could be told; it would always be there again before one that cannot be. It costs a round trip.
const checkEvery = 100 * time.Millisecond

// contended reports whether somebody has been waiting for key lately, or it is time to find out. A client that has not
// had the lock for a while need not: it is in nobody's way more than once. (Nor need one that has had another key of
// the slot since: a program that locks a thousand keys one after the other would look whether somebody waits a third of
// the time.)
func (hs *hints) contended(key string) bool {
	hash := hashOf(key)
	h, now := hs.at(hash), time.Now().UnixNano()
	switch {
	case now < h.crowded.Load():
		return true
	case h.last.Load() != hash:
		h.checked.Store(now)
	case now-h.released.Load() < int64(checkEvery) && now-h.checked.Load() > int64(checkEvery):
		h.checked.Store(now)
		return true
	case now-h.released.Load() >= int64(checkEvery):
		h.checked.Store(now)
	}
	return false
}

// release notes that this client releases key, and whether others have been in its way.
func (hs *hints) release(key string, waited bool) {
	hash := hashOf(key)
	h := hs.at(hash)
	h.last.Store(hash)
	h.released.Store(time.Now().UnixNano())
	if waited {
		hs.contend(key)
	}
}

// contend notes that somebody waits for key.
func (hs *hints) contend(key string) {
	hs.of(key).crowded.Store(time.Now().Add(crowdedFor).UnixNano())
}

// blindFor is how long a node does not keep the queue whose idea of the lock is wrong: it has a key that somebody who
// died left there, or that is no lock at all, or it has forgotten one.
const blindFor = 10 * time.Second

// unfit notes that node i had key locked although a majority did not, or the other way round.
func (hs *hints) unfit(key string, i int) {
	h := hs.of(key)
	if time.Now().UnixNano() >= h.blind.Load() {
		h.unfits.Store(0)
	}
	h.unfits.Or(uint64(only(i)))
	h.blind.Store(time.Now().Add(blindFor).UnixNano())
}

// fit returns node i, or the next that may keep the queue.
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

// agreed returns the node that all clients take for the first one: FNV-1a of the key, which needs no seed.
func agreed(key string, n int) int {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(n))
}
