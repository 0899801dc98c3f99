package conformance

import (
	"time"

	"github.com/golocker/locker"
)

var watchFlaws = []flaw{
	{name: "none, and it tells of changes", role: watcher},
	{name: "tells of no grants", fails: []string{"WatchTells", "WatchOutlivesOutages"}, role: watcher,
		store: func(s *toy) { s.hidesGrants = true }},
	{name: "does not tell that a lock is kept", fails: []string{"WatchTells"}, role: watcher,
		store: func(s *toy) { s.hidesKeeps = true }},
	{name: "tells of changes after stop", fails: []string{"WatchTells"}, role: watcher,
		store: func(s *toy) { s.watchesOn = true }},
	{name: "an outage ends the watch", fails: []string{"WatchOutlivesOutages"}, role: watcher,
		store: func(s *toy) { s.watchBreaks = true }},
}

func watcher(b *toyBackend) locker.Backend { return toyWatcher{b} }

type toyWatcher struct{ *toyBackend }

// Watch looks at the lock every ten milliseconds.
func (b toyWatcher) Watch(key string, changed func()) (stop func(), err error) {
	s := b.toy
	s.mu.Lock()
	defer s.mu.Unlock()
	last, stopped := s.locks[key], false
	var look *time.Timer
	look = time.AfterFunc(10*time.Millisecond, func() {
		s.mu.Lock()
		now := s.locks[key]
		granted, kept := now.token != "" && !now.kept, now.kept
		tells := now.token != last.token || kept != last.kept
		last = now
		if !stopped && !(s.watchBreaks && s.down) {
			look.Reset(10 * time.Millisecond)
		}
		tells = tells && !stopped && !(granted && s.hidesGrants) && !(kept && s.hidesKeeps)
		s.mu.Unlock()
		if tells {
			changed()
		}
	})
	return func() { s.with(func() { stopped = !s.watchesOn }) }, nil
}
