package filelock

import (
	"os"
	"sync"
)

// notices tells which files of a directory were replaced, by what the kernel tells (inotify). Its limits, of instances
// and watches of a user, may be reached: waiters then look at intervals, and the next one tries again.
type notices struct {
	open func() (*os.File, error)

	mu      sync.Mutex
	running bool
	closed  bool
	file    *os.File // what the kernel tells comes from here; nil while it tells nothing
	watches map[string]map[*func()]bool
}

// Watch implements record.Watcher. There is one watch in the kernel, of the directory: it begins with the first waiter,
// and ends with the Store.
func (s *Store) Watch(name string, changed func()) (live func() bool, stop func()) {
	n := &s.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watches == nil {
		n.watches = make(map[string]map[*func()]bool)
	}
	if n.watches[name] == nil {
		n.watches[name] = make(map[*func()]bool)
	}
	n.watches[name][&changed] = true
	switch {
	case n.file != nil:
		changed()
	case !n.running && !n.closed:
		n.running = true
		go n.run() // the file system may hang
	}
	return n.live, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if delete(n.watches[name], &changed); len(n.watches[name]) == 0 {
			delete(n.watches, name)
		}
	}
}

func (n *notices) live() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.file != nil
}

// run tells of changes until close is called, or until the kernel tells nothing.
func (n *notices) run() {
	f, err := n.open()
	begun := err == nil && n.begin(f)
	text := make([]byte, 64<<10)
	for begun {
		count, err := f.Read(text)
		names, all := changes(text[:max(0, count)])
		n.tell(names, all)
		begun = err == nil
	}
	n.mu.Lock()
	n.running, n.file = false, nil
	n.mu.Unlock()
	n.tell(nil, true) // they look more often now
	if f != nil {
		_ = f.Close()
	}
}

// begin tells all waiters that changes will be told from now on.
func (n *notices) begin(f *os.File) bool {
	n.mu.Lock()
	if !n.closed {
		n.file = f
	}
	begun := n.file != nil
	n.mu.Unlock()
	n.tell(nil, true)
	return begun
}

// tell calls those who watch files with these names, or all.
func (n *notices) tell(names []string, all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if all {
		names = nil
		for name := range n.watches {
			names = append(names, name)
		}
	}
	for _, name := range names {
		for changed := range n.watches[name] {
			(*changed)()
		}
	}
}

func (n *notices) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.file != nil {
		_ = n.file.Close()
	}
}
