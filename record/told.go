package record

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// storesClock is the id of the clock of a [ServerClock], in records. Times on it count from 1970.
const storesClock = "utc"

// instant is a time on a clock. The id is empty if it is not known.
type instant struct {
	id  string
	now time.Duration
}

// told is what an answer says about the time.
type told struct{ micros atomic.Int64 }

type toldKey struct{}

// Tell says what time it is on the clock of the machine that has answered the request with that context. A
// [ServerClock] calls it for each answer. It may do so for several answers to one request, as when a client library
// repeats it, and concurrently: any of them would do, and the latest time counts. It is without effect for a context
// that is not of a Backend.
func Tell(ctx context.Context, now time.Time) {
	t, _ := ctx.Value(toldKey{}).(*told)
	if t == nil {
		return
	}
	for {
		was, is := t.micros.Load(), now.UnixMicro()
		if is <= was || t.micros.CompareAndSwap(was, is) {
			return
		}
	}
}

// timing is what a Backend knows of the time of its store.
type timing struct {
	resolution, skew time.Duration // skew is 0 if times that are told are not used

	mu    sync.Mutex
	last  time.Duration // on the store's clock; 0 if it has told nothing
	asked time.Time     // when the request for it was sent
}

// keepTold is for how long the answer is believed that was furthest ahead. It need not be right; see covers.
const keepTold = time.Minute

// asks returns the context of a request that is about to be sent, and a function that returns, when the answer has
// arrived, what time it was at some moment in between.
func (b *Backend) asks(ctx context.Context) (context.Context, func() instant) {
	if b.timing.skew <= 0 {
		return ctx, b.now
	}
	answer, asked := new(told), time.Now()
	return context.WithValue(ctx, toldKey{}, answer), func() instant {
		now := time.Duration(answer.micros.Load()) * time.Microsecond
		if now <= 0 || now > latest {
			return instant{}
		}
		t := &b.timing
		t.mu.Lock()
		defer t.mu.Unlock()
		if since := asked.Sub(t.asked); t.last == 0 || since > keepTold || now > t.last+since {
			t.last, t.asked = now, asked
		}
		return instant{storesClock, now}
	}
}

// latest is the latest time of a clock that can be in a record.
const latest = time.Duration(maxEnds-maxLength) * time.Millisecond

// now returns the time on the machine's clock, if there is one that can be in a record: another id would be read as
// another one, or nobody would read the record.
func (b *Backend) now() instant {
	if b.clock == nil {
		return instant{}
	}
	id, now := b.clock.Clock()
	if id == storesClock || len(id) > maxClockID || !utf8.ValidString(id) || now <= 0 || now > latest {
		return instant{}
	}
	return instant{id, now}
}

// stamp notes in a record when its length is over, if there is a clock. It is called before the record is sent, and
// after the moment from which its owner counts. own is the record of the same owner that it is written over; nil if it
// is over that of another one. misses is how many times the same was written and did not cover its length; see covers.
//
// An owner relies on what it was promised until it knows that it has more. So the end of its record does not get
// earlier, and what others watch gets no end: the answer that would show that it is too early may be lost.
func (b *Backend) stamp(c, own *content, misses int) {
	c.Clock, c.Ends = "", 0
	if !c.taken() {
		return
	}
	if at := b.now(); at.id != "" {
		c.Clock, c.Ends = at.id, milliseconds(at.now)+c.Length
		return
	}
	inherits := own != nil && c.State == held
	t := &b.timing
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.skew <= 0 || t.last == 0 || misses >= maxMisses || inherits && own.Clock != storesClock {
		return
	}
	slack, since := max(t.resolution, minSlack), time.Since(t.asked)
	if misses > 0 { // a machine that is ahead has answered, and no other one is ahead of it by more
		slack += t.skew
	}
	if c.State == kept { // others may take it before a second write has mended the end
		since = patience(since)
	}
	ends := t.last + since + patience(c.length()) + t.resolution + t.skew + slack + time.Millisecond
	ends = (ends + t.resolution - 1).Truncate(t.resolution) // others look at times of the store, which are as round
	c.Clock, c.Ends = storesClock, min(ends.Milliseconds(), maxEnds)
	if inherits {
		c.Ends = max(c.Ends, own.Ends)
	}
}

const (
	// minSlack is for requests whose ways take differently long.
	minSlack = 100 * time.Millisecond

	// maxSkew keeps ends within what a record can say. Those who look watch it for less.
	maxSkew = 365 * 24 * time.Hour

	// maxMisses is how many times a record is written whose end is too early.
	maxMisses = 2
)

// covers reports whether the owner of a record may rely on it for a length, from before the request was sent: whether
// others take the lock later than that. at is what the answer to that request, or to a later one, has told.
//
// What stamp believes of the store's time proves nothing. The machine may have stood still since, and its clock with
// it; or the store's clock was set. The answer was given after the owner began to count. No machine of the store has a
// clock that is ahead of it by more than the skew and the resolution, now or later.
func (b *Backend) covers(c *content, length time.Duration, at instant) bool {
	if c.Clock != storesClock {
		return true
	}
	ends := at.now + b.timing.resolution + b.timing.skew + patience(length)
	return at.id == storesClock && c.Ends >= milliseconds(ends)
}

// counts returns from when the length of a record counts that was read: from when it was seen, or, by the clock, from
// when it was written, if that was before. Either is safe: neither begins before the owner counts. If somebody has set
// the clock back, as by restoring a machine beside its disk, a record ends too late on it, and watching bounds that.
// The clock of a machine is read before that of package time: a pause in between delays.
//
// A record of another clock was written before a restart of this machine, or by another machine, which may go on: a
// volume can move to the next machine while the first one is only cut off. Nothing tells the two apart for sure: clones
// of a machine have the same ids and addresses. So such a record counts from when it was seen; see adopt.
func counts(c *content, seen time.Time, at instant) time.Time {
	if c.Clock == "" || at.id != c.Clock {
		return seen
	}
	length := c.length()
	if c.Clock == storesClock {
		length = patience(length) // is in Ends
	}
	written := time.Now().Add(time.Duration(c.Ends)*time.Millisecond - at.now - length)
	if written.Before(seen) {
		return written
	}
	return seen
}
