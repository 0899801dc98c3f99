package memory

// Len tells how many locks b stores, expired ones included.
func Len(b *Backend) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locks)
}
