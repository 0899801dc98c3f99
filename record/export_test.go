package record

import (
	"crypto/rand"
	"time"
)

const (
	MaxSightings = maxSightings
	OldSightings = oldSightings
	LookedAt     = lookedAt
)

// Parses returns the error of reading a text as a record.
func Parses(text []byte) error {
	_, err := Last(text)
	return err
}

// Last reads a text as a record, and returns the last token that was issued.
func Last(text []byte) (uint64, error) {
	c, err := parse(text)
	return c.Last, err
}

// Sightings returns how many records b remembers.
func Sightings(b *Backend) int {
	b.seen.mu.Lock()
	defer b.seen.mu.Unlock()
	return len(b.seen.taken.byName)
}

// Hints returns how many free records b remembers.
func Hints(b *Backend) int {
	b.seen.mu.Lock()
	defer b.seen.mu.Unlock()
	return len(b.seen.hints.byName)
}

// Saw notes that b has seen the record of a lock that is held, and returns since when it is known.
func Saw(b *Backend, name string) time.Time {
	return b.seen.saw(name, &content{State: held, Nonce: "1"})
}

// Patience returns for how long the last record of a lock with that TTL is watched.
func Patience(ttl time.Duration) time.Duration { return patience(ttl) }

// Free returns the text of a record of a free lock.
func Free(last uint64) string {
	c := content{State: free, Last: last}
	c.renew(rand.Text())
	return string(c.text())
}

// Text returns the text of a record of a lock that is held.
func Text(owner string, token, last uint64, length time.Duration) string {
	c := content{State: held, Owner: owner, Token: token, Last: last, Length: milliseconds(length)}
	c.renew(rand.Text())
	return string(c.text())
}

// Periods returns how many periods begin while a pace is asked so many times, by the clocks as they are.
func Periods(calls int) (periods int) {
	var p pace
	for range calls {
		before := p.period
		if p.rest(&sheet{}, nil); !p.period.Equal(before) {
			periods++
		}
	}
	return periods
}
