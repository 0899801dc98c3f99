package node

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/script"
)

const (
	// untoldPoll is the longest pause between two requests of a waiter that cannot be notified, because its driver has
	// no subscriptions or its connection is still being made.
	untoldPoll = 100 * time.Millisecond
	// behindPoll is the shortest pause between two requests of a waiter behind the first one, however short the TTL is.
	behindPoll = 500 * time.Millisecond
	// stagger is the time between the requests of two waiters, one behind the other, when the TTL of the lock ends. The
	// pause grows with the place in the queue, up to maxStagger places.
	stagger, maxStagger = 5 * time.Millisecond, 10
)

// pause is how long to wait for a notification before the next request.
func (w *waiter) pause(p script.Position) time.Duration {
	if !w.unanswered.IsZero() {
		var resting *locker.RestingError
		if errors.As(w.fault, &resting) {
			// Until its rest is over, the node gives the same answer. Then the waiters should not all ask at once.
			return min(resting.Remaining, w.req.Patience-time.Since(w.unanswered)) + rand.N(untoldPoll)
		}
		// The pause is short at first, because the server may have granted the lock, and grows while requests fail.
		d := min(max(time.Since(w.unanswered), untoldPoll), time.Second)
		return d/2 + rand.N(d/2)
	}
	if p.More {
		return 0
	}
	d := script.ClaimWindow*3/4 + rand.N(script.ClaimWindow/2)
	if w.news == nil || !w.inbox.live(w.inbox.name) {
		d = untoldPoll/2 + rand.N(untoldPoll/2)
	}
	if p.Left > 0 { // the holder may have died
		d = min(d, w.untilFree(p))
	}
	return d
}

// untilFree is how long it is until the lock is free if its holder has died. Waiters behind the first one may have come
// to the front when that matters, without having been told, or the ones before them may have died as well. So they look
// at the end of the TTL, too, after those before them.
func (w *waiter) untilFree(p script.Position) time.Duration {
	if p.Rank == 0 {
		return p.Left + time.Millisecond
	}
	return max(p.Left, behindPoll) + time.Duration(min(p.Rank, maxStagger))*stagger
}
