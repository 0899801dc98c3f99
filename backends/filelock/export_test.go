//go:build linux || darwin

package filelock

import "os"

var (
	Advised = advised
	TryLock = tryLock
	Unlock  = unlock
)

// Watched reports whether somebody watches a record, and is told.
func Watched(s *Store, name string) bool {
	s.notices.mu.Lock()
	defer s.notices.mu.Unlock()
	return s.notices.file != nil && len(s.notices.watches[name]) > 0
}

// WatchBy sets what s reads the changes of its directory from.
func WatchBy(s *Store, open func() (*os.File, error)) { s.notices.open = open }
