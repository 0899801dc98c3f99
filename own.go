package locker

import (
	"iter"
	"time"

	"github.com/golocker/locker/inspect"
)

// ownerPrefixLen is how many bytes of an owner's token are shown, as stores do.
const ownerPrefixLen = 8

// ownStep is how many leases, or keys, are looked at before others may have the mutex that guards them.
const ownStep = 100

// OwnLeases implements [inspect.Process].
func (c *Client) OwnLeases() iter.Seq[inspect.OwnLease] {
	return func(yield func(inspect.OwnLease) bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		some := make([]*grant, 0, ownStep)
		pass := func() bool {
			c.mu.Unlock()
			defer c.mu.Lock()
			for _, l := range c.queues.own(some) {
				if !yield(l) {
					return false
				}
			}
			some = some[:0]
			return true
		}
		// Go allows others to change a map meanwhile. What goes from the first to the second may come twice.
		for _, g := range c.schedule.byKey {
			if some = append(some, g); len(some) == ownStep && !pass() {
				return
			}
		}
		for g := range c.schedule.more {
			if some = append(some, g); len(some) == ownStep && !pass() {
				return
			}
		}
		pass()
	}
}

// own describes the leases of some grants, as far as they have not ended.
func (qs *keyQueues) own(of []*grant) (all []inspect.OwnLease) {
	leases := make([]*lease, 0, len(of))
	for _, g := range of {
		if l, own := g.own(); l != nil {
			own.Caller = l.from.String() // takes longer than the rest
			all, leases = append(all, own), append(leases, l)
		}
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for i, l := range leases {
		all[i].Wanted = all[i].Wanted || qs.wants(l)
	}
	return all
}

// own describes the lease of the grant. It is nil if it has ended.
func (g *grant) own() (l *lease, own inspect.OwnLease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l = g.lease; l.err != nil {
		return nil, own
	}
	until, _ := g.end()
	return l, inspect.OwnLease{
		Key: g.req.Key, Owner: g.req.Token[:min(ownerPrefixLen, len(g.req.Token))], Label: g.req.Label,
		Fence: l.fence, Since: g.start, Until: until, Err: g.failed, Wanted: l.wanted != nil && l.wanted.is,
	}
}

// OwnWaits implements [inspect.Process].
func (c *Client) OwnWaits() iter.Seq[inspect.OwnWait] { return c.queues.waits }

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
