package memory

import (
	"maps"
	"slices"
)

// Len returns how many locks and groups b stores, including expired ones.
func Len(b *Backend) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locks) + len(b.groups)
}

// Left removes unused locks from b and returns the keys of the others.
func Left(b *Backend) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep = 0
	b.dropUnused()
	return slices.AppendSeq(slices.Collect(maps.Keys(b.locks)), maps.Keys(b.groups))
}

// Delete removes a lock behind its holder's back.
func Delete(b *Backend, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.locks, key)
	delete(b.groups, key)
}
