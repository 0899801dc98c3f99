package history

import "sync"

// Register is a resource that a lock protects: a number that holders read, and write back increased by one. A fenced
// Register refuses tokens that are smaller than one it has seen, for reads and writes. So it loses no update, whatever
// happens to the lock. A Register that is not fenced should lose some updates. If it does not, the faults were too
// weak.
type Register struct {
	Fenced bool

	mu      sync.Mutex
	fence   uint64
	value   int
	Writes  int // number of accepted writes
	Refused int
	Lost    int // number of updates that a write overwrote without having read them
}

// Read returns the value, unless the register refuses the token.
func (r *Register) Read(fence uint64) (value int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.admit(fence)
}

// Write stores read plus one, unless the register refuses the token.
func (r *Register) Write(fence uint64, read int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.admit(fence) {
		return false
	}
	r.Lost += max(0, r.value-read)
	r.value = read + 1
	r.Writes++
	return true
}

func (r *Register) admit(fence uint64) bool {
	if !r.Fenced {
		return true
	}
	if fence < r.fence {
		r.Refused++
		return false
	}
	r.fence = fence
	return true
}
