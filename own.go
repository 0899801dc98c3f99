package locker

import (
	"iter"
	"time"

	"github.com/golocker/locker/inspect"
)

// ownerPrefixLen is how many bytes of an owner's token are shown, as stores do.
const ownerPrefixLen = 8

// OwnLeases implements [inspect.Process].
func (c *Client) OwnLeases() iter.Seq[inspect.OwnLease] {
	return func(yield func(inspect.OwnLease) bool) {
		c.mu.Lock()
		n := len(c.schedule.grants)
		c.mu.Unlock()
		grants := make([]*grant, 0, n+n/8) // without the mutex: pages of memory that are new take longer than the copy
		c.mu.Lock()
		grants = append(grants, c.schedule.grants...)
		c.mu.Unlock()
		for _, g := range grants {
			if l, held := g.own(); held && !yield(l) {
				return
			}
		}
	}
}

// own describes the lease of the grant. held is false if it has ended.
func (g *grant) own() (l inspect.OwnLease, held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	until, _ := g.end()
	return inspect.OwnLease{
		Key: g.req.Key, Owner: g.req.Token[:min(ownerPrefixLen, len(g.req.Token))], Label: g.req.Label,
		Fence: g.lease.fence, Since: g.start, Until: until, Err: g.failed,
	}, g.lease.err == nil
}

// OwnWaits implements [inspect.Process].
func (c *Client) OwnWaits() iter.Seq[inspect.OwnWait] { return c.queues.waits }

// ownStep is how many keys waits looks at before it lets others have the mutex.
const ownStep = 100

func (qs *keyQueues) waits(yield func(inspect.OwnWait) bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	var found []inspect.OwnWait
	pass := func() bool {
		qs.mu.Unlock()
		defer qs.mu.Lock()
		for _, w := range found {
			if !yield(w) {
				return false
			}
		}
		found = found[:0]
		return true
	}
	looked := 0
	add := func(q *keyQueue, calls int, since time.Time) bool {
		if calls > 0 {
			_, err := q.failing()
			found = append(found, inspect.OwnWait{Key: q.key, Calls: calls, Since: since, Holder: q.label(), Err: err})
		}
		looked++
		return looked%ownStep > 0 || pass()
	}
	// Go allows others to change a map meanwhile, and what is in it for all of the loop comes once.
	for _, q := range qs.byKey {
		calls, since := q.waiting.Len(), q.since
		if q.local == nil {
			calls++
		} else if calls > 0 {
			since = q.waiting.Front().Value.(*caller).since
		}
		if !add(q, calls, since) {
			return
		}
	}
	for _, of := range qs.groups {
		if !add(of[0], len(of), of[0].since) {
			return
		}
	}
	pass()
}
