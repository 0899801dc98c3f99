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
func (g *grant) own() (own inspect.OwnLease, held bool) {
	g.mu.Lock()
	l := g.lease
	until, _ := g.end()
	own = inspect.OwnLease{
		Key: g.req.Key, Owner: g.req.Token[:min(ownerPrefixLen, len(g.req.Token))], Label: g.req.Label,
		Fence: l.fence, Since: g.start, Until: until, Err: g.failed, Wanted: l.wanted != nil && l.wanted.is,
	}
	held = l.err == nil
	g.mu.Unlock()
	own.Caller = l.from.String()
	if qs := &g.client.queues; held && !own.Wanted {
		qs.mu.Lock()
		own.Wanted = qs.wants(l)
		qs.mu.Unlock()
	}
	return own, held
}

// OwnWaits implements [inspect.Process].
func (c *Client) OwnWaits() iter.Seq[inspect.OwnWait] { return c.queues.waits }

// ownStep is how many keys waits looks at before it lets others have the mutex.
const ownStep = 100

func (qs *keyQueues) waits(yield func(inspect.OwnWait) bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	var found []inspect.OwnWait
	var froms []*stack
	pass := func() bool {
		qs.mu.Unlock()
		defer qs.mu.Lock()
		for i, w := range found {
			if w.Caller = froms[i].String(); !yield(w) {
				return false
			}
		}
		found, froms = found[:0], froms[:0]
		return true
	}
	looked := 0
	add := func(q *keyQueue, calls int, since time.Time, from *stack) bool {
		if calls > 0 {
			_, err := q.failing()
			found = append(found, inspect.OwnWait{Key: q.key, Calls: calls, Since: since, Holder: q.label(), Err: err})
			froms = append(froms, from)
		}
		looked++
		return looked%ownStep > 0 || pass()
	}
	// Go allows others to change a map meanwhile, and what is in it for all of the loop comes once.
	for _, q := range qs.byKey {
		calls, since, from := q.waiting.Len(), q.since, q.from
		if q.local == nil {
			calls++
		} else if calls > 0 {
			first := q.waiting.Front().Value.(*caller)
			since, from = first.since, first.from
		}
		if !add(q, calls, since, from) {
			return
		}
	}
	for _, of := range qs.groups {
		if !add(of[0], len(of), of[0].since, of[0].from) {
			return
		}
	}
	pass()
}
