package memory

import (
	"maps"
	"slices"
)

// Len tells how many locks b stores, expired ones included.
func Len(b *Backend) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locks)
}

// Left returns the keys of the locks that b stores when it has looked for those of no use any more.
func Left(b *Backend) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep = 0
	b.dropUnused()
	return slices.Collect(maps.Keys(b.locks))
}

// Delete removes a lock behind its holder's back.
func Delete(b *Backend, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.locks, key)
}
