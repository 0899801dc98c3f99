package lockcertmagic

// Claims returns how many names are claimed.
func Claims(s *Storage) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.claims)
}
