package record

import (
	"container/list"
	"context"
	"sync"
	"time"
	"unicode/utf8"
)

// entry is a record that was read or written.
type entry struct {
	content
	version string    // empty: there is no record
	since   time.Time // from when the length counts for this process; see sightings. Zero if it has written the record
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

// now returns the id of the clock, and the time on it. The id is empty if there is no clock, or one that cannot be in a
// record: its id would be read as another one, or nobody would read the record.
func (b *Backend) now() (id string, now time.Duration) {
	if b.clock == nil {
		return "", 0
	}
	const latest = time.Duration(maxEnds-maxLength) * time.Millisecond
	id, now = b.clock.Clock()
	if len(id) > maxClockID || !utf8.ValidString(id) || now <= 0 || now > latest {
		return "", 0
	}
	return id, now
}

// stamp notes in a record when its length is over, if there is a clock. It is called before the record is sent, and
// after the moment from which its owner counts.
func (b *Backend) stamp(c *content) {
	if !c.taken() {
		return
	}
	if id, now := b.now(); id != "" {
		c.Clock, c.Ends = id, milliseconds(now)+c.Length
	}
}

// counts returns from when the length of a record counts that was read: from when it was seen, or, by the clock, from
// when it was written, if that was before. Either is safe: neither begins before the owner counts. If somebody has set
// the clock back, as by restoring a machine beside its disk, a record ends too late on it, and watching bounds that.
// The clock is read before that of package time: a pause in between delays.
//
// A record of another clock was written before a restart of this machine, or by another machine, which may go on: a
// volume can move to the next machine while the first one is only cut off. Nothing tells the two apart for sure: clones
// of a machine have the same ids and addresses. So such a record counts from when it was seen; see adopt.
func (b *Backend) counts(c *content, seen time.Time) time.Time {
	if c.Clock == "" {
		return seen
	}
	id, now := b.now()
	if id != c.Clock {
		return seen
	}
	written := time.Now().Add(time.Duration(c.Ends)*time.Millisecond - now - c.length())
	if written.Before(seen) {
		return written
	}
	return seen
}

// adopt writes a record that keeps others from the lock again, with the clock of this process, if it has another one or
// none. So those who look once need not watch it either: the first of them writes from when it counts. The owner finds
// a record of its own, and goes on from there.
func (b *Backend) adopt(ctx context.Context, name string, found entry) {
	if id, _ := b.now(); id != "" && id != found.Clock {
		c := found.content
		_, _ = b.write(ctx, name, found.version, &c)
	}
}

// maxSightings bounds how many records are remembered.
const maxSightings = 10_000

// sightings is what this process remembers of records. The zero value is ready for use.
//
// No clock of one machine is compared with that of another; see [Clock] for the processes of one machine. The owner of
// a lock relies on its record for the length, and counts from before it sent the record. Others count the whole length
// from when they came to know of the record: from the arrival of the reply that showed this version for the first time.
// The record was stored before that. When the length is over, the owner relies on this record no more. If it has
// renewed the lock, there is a record with another version, and a Replace of the old one is refused.
//
// Counting from when the request was sent would be wrong: a request may be on its way for long, and show a record that
// was stored in the meantime.
//
// If there are more records than fit, the one that was not seen for the longest time is forgotten. Its length is
// counted anew when it is seen again.
type sightings struct {
	mu     sync.Mutex
	byName map[string]*list.Element
	order  list.List // of *sighting: the ones that were seen last come first
}

type sighting struct {
	name    string
	version string
	since   time.Time
	free    *entry // the record, if this process has written it, and it is free
}

// find returns what is remembered of name. Call with mu held.
func (s *sightings) find(name string) *sighting {
	if at := s.byName[name]; at != nil {
		s.order.MoveToFront(at)
		return at.Value.(*sighting)
	}
	if s.byName == nil {
		s.byName = make(map[string]*list.Element)
	}
	if last := s.order.Back(); len(s.byName) >= maxSightings {
		delete(s.byName, s.order.Remove(last).(*sighting).name)
	}
	seen := &sighting{name: name}
	s.byName[name] = s.order.PushFront(seen)
	return seen
}

// saw records that a reply has shown a version, and returns when the first reply did so. Call it when the reply has
// arrived.
func (s *sightings) saw(name, version string) (since time.Time) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.find(name)
	if seen.version != version || seen.free != nil {
		*seen = sighting{name: name, version: version, since: now}
	}
	return seen.since
}

// freed records that this process has written a free record. The next acquisition need not read it.
func (s *sightings) freed(name string, e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.find(name) = sighting{name: name, free: &e}
}

// hint returns the free record of freed, if nothing else was seen since. It returns it once: whoever gets it is about
// to replace it. A wrong hint costs a request.
func (s *sightings) hint(name string) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.byName[name]
	if at == nil || at.Value.(*sighting).free == nil {
		return entry{}, false
	}
	e := *at.Value.(*sighting).free
	delete(s.byName, name)
	s.order.Remove(at)
	return e, true
}
