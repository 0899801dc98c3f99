package history

import "sync"

// Register is what a lock protects: a number that holders read, and write back one greater. A fenced one refuses tokens
// smaller than one that it has seen, already when it is read, so it loses no update whatever happens to the lock. Its
// twin that does not look shows whether the faults were strong enough: it should lose some.
type Register struct {
	Fenced bool

	mu      sync.Mutex
	fence   uint64
	value   int
	Writes  int // accepted
	Refused int
	Lost    int // updates overwritten by a write that knew nothing of them
}

// Read returns the value, unless the register refuses the token.
func (r *Register) Read(fence uint64) (value int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.admit(fence)
}

// Write stores one more than what was read, unless the register refuses the token.
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
