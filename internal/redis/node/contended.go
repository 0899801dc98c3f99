package node

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// contended remembers on which locks a command has lately not found the usual case, which is that nobody else wants the
// lock. Commands for these locks do not try the usual case, because a second round trip would have to follow. This is
// advice, so different locks may share a slot, and there is no mutex and no clean-up.
type contended struct {
	until [256]atomic.Int64 // Unix times in ns
}

// contendedFor is how long a lock counts as contended. A lock that counts as contended without a reason needs no more
// round trips, but its commands cost the server up to three times as much, because they are not joined with others.
const contendedFor = 10 * time.Second

var contendedSeed = maphash.MakeSeed()

func (c *contended) of(lock string) *atomic.Int64 {
	return &c.until[maphash.String(contendedSeed, lock)%uint64(len(c.until))]
}

// note records that the case of lock was not the usual one.
func (c *contended) note(lock string) { c.of(lock).Store(time.Now().Add(contendedFor).UnixNano()) }

// lately reports whether lock may be contended.
func (c *contended) lately(lock string) bool {
	until := c.of(lock).Load()
	return until != 0 && time.Now().UnixNano() < until
}
