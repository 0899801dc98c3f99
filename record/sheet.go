package record

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"time"
)

// sheet is a record, as it was read or written, with one lock or those of a group.
type sheet struct {
	name    string
	version string  // empty: there is no record
	at      instant // what time it was when the reply came, or later
	group   *group  // nil: there is one lock
	locks   map[string]content
	since   map[string]time.Time // from when the lengths count for this process; see sightings
}

// entry returns what the record says about a lock. If the lock is free, a record of a group has no more than the last
// token.
func (s *sheet) entry(at string) entry {
	e := entry{version: s.version, at: s.at, since: s.since[at], sheet: s}
	c, found := s.locks[at]
	switch {
	case found:
		e.content = c
	case s.group != nil && s.version != "":
		e.content = content{State: free, Last: s.group.last}
	}
	if s.group != nil {
		e.Over, e.issued = s.group.left, s.group.last
	}
	return e
}

// alone reports whether nobody has any of the locks.
func (s *sheet) alone() bool {
	for _, c := range s.locks {
		if c.taken() {
			return false
		}
	}
	return true
}

// change is what is to be written about a lock.
type change struct {
	at     string
	next   *content // write completes it
	own    *content // see Backend.stamp
	misses int
}

// with returns the record as it is after some changes, which are stamped and have nonces. The locks count from now.
func (s *sheet) with(changes []change) *sheet {
	next := &sheet{name: s.name, version: s.version, at: s.at, locks: maps.Clone(s.locks), since: maps.Clone(s.since)}
	if next.locks == nil {
		next.locks, next.since = make(map[string]content), make(map[string]time.Time)
	}
	if s.group != nil {
		of := *s.group
		next.group = &of
	}
	for _, c := range changes {
		next.since[c.at] = time.Now()
		if next.group == nil {
			next.locks[c.at] = *c.next
			continue
		}
		was, found := next.locks[c.at]
		if found && was.State == kept && c.next.Owner != was.Owner {
			next.group.leaves(was.Nonce)
		}
		next.group.last = max(next.group.last, c.next.Last)
		if c.next.taken() {
			next.locks[c.at] = *c.next
			continue
		}
		delete(next.locks, c.at)
		next.group.leaves(c.next.Nonce)
	}
	return next
}

// get reads a record, and notes which locks were seen.
func (b *Backend) get(ctx context.Context, name string, grouped bool) (*sheet, error) {
	ctx, tells := b.asks(ctx)
	text, version, err := b.store.Get(ctx, name)
	if err != nil {
		return nil, unavailable(err)
	}
	s := &sheet{name: name, version: version, at: tells()}
	switch {
	case version == "" && grouped:
		s.group = &group{}
		return s, nil
	case version == "":
		return s, nil
	}
	return s, s.fill(text, grouped, b.seen.saw)
}

// fill parses the text of a record. saw returns since when what it says about a lock of that name is known.
func (s *sheet) fill(text []byte, grouped bool, saw func(name string, c *content) time.Time) (err error) {
	if grouped {
		s.group, s.locks, err = parseGroup(text)
	} else {
		var c content
		c, err = parse(text)
		s.locks = map[string]content{"": c}
	}
	if err != nil {
		return err
	}
	s.since = make(map[string]time.Time, len(s.locks))
	for at, c := range s.locks {
		s.since[at] = counts(&c, saw(place{s.name, at}.sightingOf(), &c), s.at)
	}
	return nil
}

// read reads what the record says about a lock.
func (b *Backend) read(ctx context.Context, p place) (entry, error) {
	s, err := b.get(ctx, p.name, p.at != "")
	if err != nil {
		return entry{}, err
	}
	return s.entry(p.at), nil
}

// draw completes some changes, and returns the record that has them, and its text. They get one nonce, so what they
// have in common is written once.
func (b *Backend) draw(s *sheet, changes []change) (next *sheet, text []byte) {
	nonce := rand.Text()
	for _, c := range changes {
		b.stamp(c.next, c.own, c.misses)
		c.next.renew(nonce)
	}
	if next = s.with(changes); next.group != nil {
		return next, sealGroup(next.group, next.locks, nonce)
	}
	c := next.locks[""]
	return next, c.text()
}

// put stores the record next in the place of s. The error matches ErrConflict or locker.ErrUnavailable. In both cases
// the record may have been written, or may be written later; see attempt.
func (b *Backend) put(ctx context.Context, s, next *sheet, text []byte) (*sheet, error) {
	ctx, tells := b.asks(ctx)
	var version string
	var err error
	if s.version == "" {
		version, err = b.store.Create(ctx, s.name, text)
	} else {
		version, err = b.store.Replace(ctx, s.name, s.version, text)
	}
	switch {
	case err == nil:
		next.version, next.at = version, tells()
		for at := range next.since {
			c := next.locks[at]
			if was := s.locks[at]; was.Nonce == c.Nonce && c.Nonce != "" {
				continue
			}
			next.since[at] = b.seen.saw(place{s.name, at}.sightingOf(), &c)
		}
		if next.group == nil {
			b.seen.wrote(next)
		}
		return next, nil
	case errors.Is(err, ErrConflict):
		return nil, ErrConflict
	}
	return nil, unavailable(err)
}

// replace stores what c says in the place of a record that has one lock, or the ticks of a job; see put.
func (b *Backend) replace(ctx context.Context, found *entry, c *content) (entry, error) {
	next, text := b.draw(found.sheet, []change{{next: c}})
	written, err := b.put(ctx, found.sheet, next, text)
	if err != nil {
		return entry{}, err
	}
	return written.entry(""), nil
}
