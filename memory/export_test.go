package memory

// Len tells how many locks b stores, expired ones included.
func Len(b *Backend) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locks)
}

// Delete removes a lock behind its holder's back.
func Delete(b *Backend, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.locks, key)
}
