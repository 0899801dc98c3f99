package memory

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// group has the permits of a backend.Group: those who have some, and those who wait for some.
type group struct {
	entries map[string]*entry // by owner
	kept    []*entry          // stay taken without an owner
	taken   []bool            // by the number of the permit
	ends    time.Time         // no entry ends before
	waiting []*waiter         // in the order of their arrival
}

// entry is the permits of one owner.
type entry struct {
	token   string
	label   string
	fence   uint64
	permits []int
	since   time.Time // when they were granted
	expires time.Time
}

func (e *entry) granted() backend.Grant {
	return backend.Grant{Fence: e.fence, Permits: slices.Clone(e.permits), Sent: e.since}
}

// group returns the group of req after all that has ended was handed on. Call with mu held, and tidy afterwards.
func (b *Backend) group(key string) *group {
	g, ok := b.groups[key]
	if !ok {
		b.dropUnused()
		g = &group{entries: make(map[string]*entry)}
		b.groups[key] = g
	}
	b.handOn(key, g)
	return g
}

// tidy removes a group that nobody uses. Call with mu held.
func (b *Backend) tidy(key string, g *group) {
	if len(g.entries) == 0 && len(g.kept) == 0 && len(g.waiting) == 0 {
		delete(b.groups, key)
	}
}

// handOn ends the entries whose time is over. It grants what is free to those that wait, in their order, up to the
// first that cannot have all that it wants. Call with mu held.
func (b *Backend) handOn(key string, g *group) {
	g.expire()
	for len(g.waiting) > 0 {
		w := g.waiting[0]
		e := b.enter(g, w.req)
		if e == nil {
			break
		}
		g.waiting[0] = nil
		g.waiting = g.waiting[1:]
		w.grant = e.granted()
		w.tell(true)
	}
}

// expire removes the entries whose time is over.
func (g *group) expire() {
	now := time.Now()
	if now.Before(g.ends) {
		return
	}
	g.ends = now.Add(locker.MaxTTL)
	over := func(e *entry) bool {
		if now.Before(e.expires) {
			if e.expires.Before(g.ends) {
				g.ends = e.expires
			}
			return false
		}
		g.free(e)
		return true
	}
	for token, e := range g.entries {
		if over(e) {
			delete(g.entries, token)
		}
	}
	g.kept = slices.DeleteFunc(g.kept, over)
}

// lasts records that a new entry ends at end. If no other one may end before, it wakes the waiters that would sleep for
// longer. That is rare, so the cost of a step does not grow with the number of waiters.
func (g *group) lasts(end time.Time) {
	if !end.Before(g.ends) {
		return
	}
	g.ends = end
	for _, w := range g.waiting {
		if end.Before(w.until) {
			w.tell(false)
		}
	}
}

func (g *group) free(e *entry) {
	for _, i := range e.permits {
		g.taken[i] = false
	}
}

// enter grants to req what it wants, if that is free. Otherwise it returns nil. Call with mu held.
func (b *Backend) enter(g *group, req backend.Request) *entry {
	for len(g.taken) < req.Group.N {
		g.taken = append(g.taken, false)
	}
	var permits []int
	for i, taken := range g.taken[:req.Group.N] {
		if !taken && len(permits) < req.Group.Weight {
			permits = append(permits, i)
		}
	}
	if len(permits) < req.Group.Weight {
		return nil
	}
	for _, i := range permits {
		g.taken[i] = true
	}
	b.fence++
	now := time.Now()
	e := &entry{req.Token, req.Label, b.fence, permits, now, now.Add(req.TTL)}
	g.entries[req.Token] = e
	g.lasts(e.expires)
	b.tell(req.Key)
	return e
}

// held describes the first of those that wait or, if nobody does, the holder whose time is over first. That is of use
// to callers that want some of the first n permits.
func (g *group) held(n int) *locker.HeldError {
	if len(g.waiting) > 0 {
		return &locker.HeldError{Label: g.waiting[0].req.Label}
	}
	first := g.first(func(e *entry) bool { return e.permits[0] < n })
	if first == nil {
		return &locker.HeldError{}
	}
	return &locker.HeldError{Remaining: max(0, time.Until(first.expires)), Label: first.label}
}

// first returns the entry whose time is over first, of those for which is returns true, or nil.
func (g *group) first(is func(e *entry) bool) (first *entry) {
	look := func(e *entry) {
		if is(e) && (first == nil || e.expires.Before(first.expires)) {
			first = e
		}
	}
	for _, e := range g.entries {
		look(e)
	}
	for _, e := range g.kept {
		look(e)
	}
	return first
}

// acquirePermits is Acquire for a group.
func (b *Backend) acquirePermits(req backend.Request) (backend.Grant, error) {
	b.mu.Lock()
	defer b.unlock()
	g := b.group(req.Key)
	defer b.tidy(req.Key, g)
	e := g.entries[req.Token] // the request was sent twice
	if e == nil && len(g.waiting) == 0 {
		e = b.enter(g, req)
	}
	if e == nil {
		return backend.Grant{}, g.held(req.Group.N)
	}
	return e.granted(), nil
}

// queuePermits is Queue for a group.
func (b *Backend) queuePermits(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	b.mu.Lock()
	g := b.group(req.Key)
	if len(g.waiting) == 0 {
		if e := b.enter(g, req); e != nil {
			b.unlock()
			return e.granted(), nil
		}
	}
	held := g.held(req.Group.N)
	w := &waiter{req: req, wait: wait, news: make(chan bool, 1), until: g.ends}
	g.waiting = append(g.waiting, w)
	for _, e := range g.entries {
		b.told = append(b.told, b.holders[e.token]...)
	}
	until := w.until
	b.unlock()
	return b.waitFor(ctx, w, until, held)
}

// leavePermits is leave for a group.
func (b *Backend) leavePermits(w *waiter) *locker.HeldError {
	key := w.req.Key
	g := b.group(key)
	defer b.tidy(key, g)
	if i := slices.Index(g.waiting, w); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	if e := g.entries[w.req.Token]; e != nil {
		g.free(e)
		delete(g.entries, e.token)
		b.tell(key)
	}
	held := g.held(w.req.Group.N)
	b.handOn(key, g)
	return held
}

// ownedPermits returns the group and the entry of req. Call with mu held, and tidy afterwards.
func (b *Backend) ownedPermits(req backend.Request) (*group, *entry, error) {
	g := b.group(req.Key)
	e := g.entries[req.Token]
	if e == nil {
		b.tidy(req.Key, g)
		return nil, nil, locker.ErrNotHeld
	}
	return g, e, nil
}

// extendPermits is Extend for a group. Call with mu held.
func (b *Backend) extendPermits(req backend.Request) error {
	_, e, err := b.ownedPermits(req)
	if err != nil {
		return err
	}
	if end := time.Now().Add(req.TTL); end.After(e.expires) {
		e.expires = end // ends is too early now, which costs a look
	}
	return nil
}

// releasePermits is Release for a group. Call with mu held.
func (b *Backend) releasePermits(req backend.Request) error {
	g, e, err := b.ownedPermits(req)
	if err != nil {
		return err
	}
	delete(g.entries, e.token)
	if e.expires = time.Now().Add(req.Keep); req.Keep > 0 {
		e.label = ""
		g.kept = append(g.kept, e)
		g.lasts(e.expires)
	} else {
		g.free(e)
	}
	b.tell(req.Key)
	b.handOn(req.Key, g)
	b.tidy(req.Key, g)
	return nil
}

// inspectPermits shows the entry whose time is over first. Call with mu held.
func (b *Backend) inspectPermits(key string) inspect.Inspection {
	g := b.group(key)
	defer b.tidy(key, g)
	return g.inspect(g.owned(""))
}

// owned returns the entry whose time is over first, of those whose tokens begin with owner, or nil.
func (g *group) owned(owner string) *entry {
	return g.first(func(e *entry) bool { return strings.HasPrefix(e.token, owner) })
}

// inspect shows e, which is nil if there is none.
func (g *group) inspect(e *entry) inspect.Inspection {
	i := inspect.Inspection{State: inspect.Free, Waiting: len(g.waiting)}
	if e != nil {
		i.State, i.Label, i.Fence = inspect.Held, e.label, e.fence
		i.Owner = e.token[:min(ownerPrefixLen, len(e.token))]
		i.Remaining, i.Held = time.Until(e.expires), time.Since(e.since)
		if g.entries[e.token] == nil {
			i.State = inspect.Kept
		}
	}
	return i
}

// forcePermits releases and shows the entry of the owner whose token begins with owner. Without such an owner, it shows
// what inspectPermits does. Call with mu held.
func (b *Backend) forcePermits(key, owner string) (inspect.Inspection, error) {
	g := b.group(key)
	defer b.tidy(key, g)
	e := g.owned(owner)
	if e == nil {
		return g.inspect(g.owned("")), locker.ErrNotHeld
	}
	i := g.inspect(e)
	g.free(e)
	delete(g.entries, e.token)
	g.kept = slices.DeleteFunc(g.kept, func(other *entry) bool { return other == e })
	b.tell(key)
	b.handOn(key, g)
	return i, nil
}
