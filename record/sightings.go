package record

import (
	"container/list"
	"sync"
	"time"

	"github.com/golocker/locker"
)

// entry is what a record that was read or written says about a lock.
type entry struct {
	content
	version string    // of the record; empty: there is none
	since   time.Time // from when the length counts for this process; see sightings
	at      instant   // what time it was then, or later
	issued  uint64    // the last token of its group, if it has one
	sheet   *sheet    // what the record says beside
}

// patience returns for how long a record must have been known before its lock counts as free. Its owner relies on it
// for its length less 1 % and 2 ms, see internal/core/validity. The same is added here. So each of the two clocks may
// be wrong by 1 %.
func patience(length time.Duration) time.Duration { return length + length/100 + 2*time.Millisecond }

// left returns how long it is until the lock counts as free, if the record stays as it is.
func (e *entry) left() time.Duration {
	if !e.taken() {
		return 0
	}
	return max(0, patience(e.length())-time.Since(e.since))
}

// adopts returns what is to be written about a lock that others have, if the clock of this process is to be in the
// place of another one, or of none; or nil. So those who look once need not watch the lock either: the first of them
// writes from when it counts. The owner finds a record of its own, and goes on from there.
func (b *Backend) adopts(found *entry) *content {
	if at := b.now(); at.id != "" && at.id != found.Clock {
		c := found.content
		return &c
	}
	return nil
}

// watched returns for how long this process has known what e says, if the time of a record counts from then. It is 0 if
// the time counts by the clock.
func (e *entry) watched() time.Duration {
	switch {
	case e.at.id != "" && (e.at.id == e.Clock || !e.taken()):
		return 0
	case !e.taken():
		return 1
	}
	return max(1, time.Since(e.since))
}

const (
	// maxSightings bounds how many records are remembered. Each takes some 300 bytes, and all of them 75 MB. While there
	// are so many, no other one is remembered, rather than that one is forgotten: if keys are looked at in turn, and there
	// are more of them than fit, it would always be the one that is looked at next, and none would ever count as free.
	maxSightings = 250_000

	// oldSightings is how many are remembered of those at which nobody looks any more.
	oldSightings = 10_000

	// lookedAt is how old the last look at a record is before it is forgotten, if there are more than oldSightings. No
	// lock lasts for as long without being renewed, and a job that is started each night looks sooner.
	lookedAt = locker.MaxTTL + time.Hour

	// maxHints bounds how many free records are remembered.
	maxHints = 10_000
)

// sightings is what this process remembers of records. The zero value is ready for use.
//
// No clock of one machine is compared with that of another; see [Clock] for the processes of one machine, and
// [ServerClock] for the time of a store. The owner of
// a lock relies on its record for the length, and counts from before it sent the record. Others count the whole length
// from when they came to know of the record: from the arrival of the reply that showed this version for the first time,
// or that said that this process has written it. The record was stored before that. When the length is over, the owner
// relies on this record no more. If it has renewed the lock, there is a record with another version, and a Replace of
// the old one is refused.
//
// Counting from when the request was sent would be wrong: a request may be on its way for long, and show a record that
// was stored in the meantime.
//
// A record is remembered when its time is over, too: only then is the memory of use. What is forgotten is counted anew
// when it is seen again.
type sightings struct {
	mu    sync.Mutex
	taken recent[sighting]
	hints recent[*sheet] // free records that this process has written
}

// sighting is the first sight of a record that keeps others from the lock.
type sighting struct {
	nonce  string
	since  time.Time
	looked time.Time // for the last time
}

// saw notes that a reply has shown a record, or has said that this process has written it, and returns since when the
// nonce is known. Call it when the reply has arrived. If the lock is free, it returns the zero value.
func (s *sightings) saw(name string, c *content) (since time.Time) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hints.drop(name)
	if !c.taken() {
		s.taken.drop(name)
		return time.Time{}
	}
	seen := s.taken.use(name)
	if seen == nil {
		s.forget(now)
		if len(s.taken.byName) >= maxSightings {
			return now
		}
		seen = s.taken.add(name)
	}
	if seen.nonce != c.Nonce {
		seen.nonce, seen.since = c.Nonce, now
	}
	seen.looked = now
	return seen.since
}

// known is saw for those who look at all records. It remembers nothing: there would be no room for what others look at.
func (s *sightings) known(name string, c *content) (since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.taken.byName[name]; at != nil {
		if seen := at.Value.(*named[sighting]).value; seen.nonce == c.Nonce {
			return seen.since
		}
	}
	return time.Now()
}

// forget makes room for a new record, and so for more than one if there is more to forget. Call with mu held.
func (s *sightings) forget(now time.Time) {
	for range 2 {
		name, last := s.taken.oldest()
		if len(s.taken.byName) < oldSightings || now.Sub(last.looked) < lookedAt {
			return
		}
		s.taken.drop(name)
	}
}

// wrote notes that this process has written a record of one lock. If it is free, the next acquisition need not read it.
// Claims of ticks always read.
func (s *sightings) wrote(record *sheet) {
	if !record.alone() || record.locks[""].Ticks != "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hints.byName) >= maxHints {
		oldest, _ := s.hints.oldest()
		s.hints.drop(oldest)
	}
	*s.hints.add(record.name) = record
}

// hint returns the free record that this process has written, if nothing else was seen since, or nil. It returns it
// once: whoever gets it is about to replace it. A wrong hint costs a request.
func (s *sightings) hint(name string) *sheet {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.hints.use(name)
	s.hints.drop(name)
	if r == nil {
		return nil
	}
	return *r
}

// recent has values by name, in the order in which they were used. The zero value is ready for use.
type recent[T any] struct {
	byName map[string]*list.Element
	order  list.List // of *named[T]: those that were used last come first
}

type named[T any] struct {
	name  string
	value T
}

// use returns the value of name, or nil.
func (r *recent[T]) use(name string) *T {
	at := r.byName[name]
	if at == nil {
		return nil
	}
	r.order.MoveToFront(at)
	return &at.Value.(*named[T]).value
}

// add adds a value for name, which has none, or replaces it.
func (r *recent[T]) add(name string) *T {
	r.drop(name)
	if r.byName == nil {
		r.byName = make(map[string]*list.Element)
	}
	n := &named[T]{name: name}
	r.byName[name] = r.order.PushFront(n)
	return &n.value
}

func (r *recent[T]) drop(name string) {
	if at := r.byName[name]; at != nil {
		r.order.Remove(at)
		delete(r.byName, name)
	}
}

// oldest returns the value that was not used for the longest time, or nil.
func (r *recent[T]) oldest() (string, *T) {
	last := r.order.Back()
	if last == nil {
		return "", nil
	}
	n := last.Value.(*named[T])
	return n.name, &n.value
}
