package recordstore

import (
	"sync"
	"time"
)

// Watched is a client of a Store that tells of changes: it implements record.Watcher.
type Watched struct {
	*Store

	// Hint returns after how long each hint about a change comes. It is called for each change and watch. nil stands for
	// one hint, after the Latency of the Store.
	Hint func() []time.Duration

	mu      sync.Mutex
	watches int
	stopped int
}

// Watch implements record.Watcher.
func (w *Watched) Watch(name string, changed func()) (live func() bool, stop func()) {
	w.mu.Lock()
	w.watches++
	w.mu.Unlock()
	end := w.watch(name, func() {
		hints := []time.Duration{w.Latency}
		if w.Hint != nil {
			hints = w.Hint()
		}
		for _, after := range hints {
			time.AfterFunc(after, changed)
		}
	})
	go changed()
	return func() bool { return true }, func() {
		end()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopped++
	}
}

// Watches returns how many watches have begun, and how many of them have not ended.
func (w *Watched) Watches() (all, open int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watches, w.watches - w.stopped
}

// watch calls tell for each change of a record until stop is called. It is called with mu held.
func (s *Store) watch(name string, tell func()) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches == nil {
		s.watches = make(map[string]map[*func()]bool)
	}
	if s.watches[name] == nil {
		s.watches[name] = make(map[*func()]bool)
	}
	s.watches[name][&tell] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches[name], &tell)
	}
}

// changed tells those who watch a record. Call with mu held.
func (s *Store) changed(name string) {
	for tell := range s.watches[name] {
		(*tell)()
	}
}
