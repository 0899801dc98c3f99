package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// group is a backend.Group: those who have something of it, and those who wait.
type group struct {
	entries map[string]*entry // by owner
	kept    []*entry          // stay taken without an owner
	taken   []bool            // by the number of the permit
	has     kinds             // of the entries
	ends    time.Time         // no entry ends before
	waiting []*waiter         // upgrades, and then the others in the order of their arrival
	waits   kinds             // of waiting
}

// kinds counts entries or waiters, by their kind.
type kinds [backend.Exclusive + 1]int

// entry is what one owner has.
type entry struct {
	kind    backend.Kind
	token   string
	label   string
	fence   uint64
	permits []int
	since   time.Time // when it was granted
	expires time.Time
}

// inWayOf reports whether a caller that wants that may have to wait for e.
func (e *entry) inWayOf(want *backend.Group) bool {
	if want.Kind == backend.Permit {
		return e.permits[0] < want.N
	}
	return e.kind.Excludes(want.Kind) && e.token != want.From
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
// first that cannot have all that it wants. Those that want a shared lock pass those that want an upgradeable one. Call
// with mu held.
func (b *Backend) handOn(key string, g *group) {
	g.expire()
	for i := 0; i < len(g.waiting); {
		w := g.waiting[i]
		e, err := b.enter(g, w.req)
		switch {
		case e != nil:
			w.grant = e.granted()
		case errors.Is(err, locker.ErrNotHeld):
			w.err = err
		case w.req.Group.Kind == backend.Upgradeable && g.waits[backend.Shared] > 0:
			i++
			continue
		default:
			return
		}
		g.drop(i)
		w.tell(true)
	}
}

// join makes w wait. An upgrade comes before those that wait for what its caller has.
func (g *group) join(w *waiter) {
	at := len(g.waiting)
	if w.req.Group.From != "" {
		at = 0
	}
	g.waiting = slices.Insert(g.waiting, at, w)
	g.waits[w.req.Group.Kind]++
}

// drop removes the i-th of those that wait.
func (g *group) drop(i int) {
	g.waits[g.waiting[i].req.Group.Kind]--
	if i == 0 { // nearly always
		g.waiting[0] = nil
		g.waiting = g.waiting[1:]
		return
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
}

// queues reports whether a newcomer that wants that waits behind others, whatever is free.
func (g *group) queues(want *backend.Group) bool {
	switch {
	case want.From != "":
		return false
	case want.Kind == backend.Shared:
		return len(g.waiting) > g.waits[backend.Upgradeable]
	default:
		return len(g.waiting) > 0
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
	g.has[e.kind]--
	for _, i := range e.permits {
		g.taken[i] = false
	}
}

// enter grants to req what it wants, if that is free. Otherwise the error matches ErrHeld, or ErrNotHeld if req is an
// upgrade of what its caller does not have. Call with mu held.
func (b *Backend) enter(g *group, req backend.Request) (*entry, error) {
	want := req.Group
	var permits []int
	if want.Kind == backend.Permit {
		permits = g.lowest(want)
	}
	from := g.entries[want.From]
	switch {
	case want.From != "" && (from == nil || from.kind != backend.Upgradeable):
		return nil, locker.ErrNotHeld
	case len(permits) < want.Weight || !g.fits(want):
		return nil, locker.ErrHeld
	}
	for _, i := range permits {
		g.taken[i] = true
	}
	b.fence++
	now := time.Now()
	e := &entry{want.Kind, req.Token, req.Label, b.fence, permits, now, now.Add(req.TTL)}
	g.entries[req.Token] = e
	g.has[e.kind]++
	g.lasts(e.expires)
	b.tell(req.Key)
	return e, nil
}

// lowest returns the lowest numbers of free permits: as many as are wanted, or all that are free.
func (g *group) lowest(want *backend.Group) (permits []int) {
	for len(g.taken) < want.N {
		g.taken = append(g.taken, false)
	}
	for i, taken := range g.taken[:want.N] {
		if !taken && len(permits) < want.Weight {
			permits = append(permits, i)
		}
	}
	return permits
}

// fits reports whether no lock excludes one that is wanted.
func (g *group) fits(want *backend.Group) bool {
	if want.Kind == backend.Permit {
		return true
	}
	has := g.has
	if want.From != "" {
		has[backend.Upgradeable]--
	}
	for kind, n := range has {
		if n > 0 && want.Kind.Excludes(backend.Kind(kind)) {
			return false
		}
	}
	return true
}

// held describes the first of those that wait before a caller that wants that, without those that it passes. If there
// is none, it describes the holder whose time is over first, of those that are in the way.
func (g *group) held(want *backend.Group, before []*waiter) *locker.HeldError {
	for _, w := range before {
		if want.From == "" && (want.Kind != backend.Shared || w.req.Group.Kind != backend.Upgradeable) {
			return &locker.HeldError{Label: w.req.Label}
		}
	}
	first := g.first(func(e *entry) bool { return e.inWayOf(want) })
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

// acquireEntry is Acquire for a group.
func (b *Backend) acquireEntry(req backend.Request) (backend.Grant, error) {
	b.mu.Lock()
	defer b.unlock()
	g := b.group(req.Key)
	defer b.tidy(req.Key, g)
	var err error
	e := g.entries[req.Token] // the request was sent twice
	if e == nil {
		e, err = b.arrive(g, req)
	}
	switch {
	case errors.Is(err, locker.ErrHeld):
		return backend.Grant{}, g.held(req.Group, g.waiting)
	case err != nil:
		return backend.Grant{}, err
	}
	return e.granted(), nil
}

// arrive is enter for a newcomer.
func (b *Backend) arrive(g *group, req backend.Request) (*entry, error) {
	if g.queues(req.Group) {
		return nil, locker.ErrHeld
	}
	return b.enter(g, req)
}

// queueEntry is Queue for a group.
func (b *Backend) queueEntry(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	b.mu.Lock()
	g := b.group(req.Key)
	e, err := b.arrive(g, req)
	if !errors.Is(err, locker.ErrHeld) {
		defer b.unlock()
		defer b.tidy(req.Key, g)
		if err != nil {
			return backend.Grant{}, err
		}
		return e.granted(), nil
	}
	held := g.held(req.Group, g.waiting)
	w := &waiter{req: req, wait: wait, news: make(chan bool, 1), until: g.ends}
	g.join(w)
	for _, e := range g.entries {
		if e.inWayOf(req.Group) {
			b.told = append(b.told, b.holders[e.token]...)
		}
	}
	until := w.until
	b.unlock()
	return b.waitFor(ctx, w, until, held)
}

// isWanted reports whether somebody waits that may have to wait for e.
func (g *group) isWanted(e *entry) bool {
	if e.kind == backend.Permit {
		return slices.ContainsFunc(g.waiting, func(w *waiter) bool { return e.inWayOf(w.req.Group) })
	}
	waits := g.waits
	for _, w := range g.waiting { // upgrades come first
		if w.req.Group.From != e.token {
			break
		}
		waits[backend.Exclusive]--
	}
	for kind, n := range waits {
		if n > 0 && e.kind.Excludes(backend.Kind(kind)) {
			return true
		}
	}
	return false
}

// leaveEntry is leave for a group.
func (b *Backend) leaveEntry(w *waiter) *locker.HeldError {
	key := w.req.Key
	g := b.group(key)
	defer b.tidy(key, g)
	if e := g.entries[w.req.Token]; e != nil {
		g.free(e)
		delete(g.entries, e.token)
		b.tell(key)
	}
	i := slices.Index(g.waiting, w)
	held := g.held(w.req.Group, g.waiting[:max(0, i)])
	if i >= 0 {
		g.drop(i)
	}
	b.handOn(key, g)
	return held
}

// ownedEntry returns the group and the entry of req. Call with mu held, and tidy afterwards.
func (b *Backend) ownedEntry(req backend.Request) (*group, *entry, error) {
	g := b.group(req.Key)
	e := g.entries[req.Token]
	if e == nil {
		b.tidy(req.Key, g)
		return nil, nil, locker.ErrNotHeld
	}
	return g, e, nil
}

// extendEntry is Extend for a group. Call with mu held.
func (b *Backend) extendEntry(req backend.Request) error {
	g, e, err := b.ownedEntry(req)
	if err != nil {
		return err
	}
	if req.Group.Kind == backend.Shared && e.kind != backend.Shared {
		g.has[e.kind]--
		e.kind = backend.Shared
		g.has[e.kind]++
		b.handOn(req.Key, g)
	}
	if req.Wanted != nil && e.kind != backend.Permit && g.isWanted(e) {
		b.told = append(b.told, &req.Wanted)
	}
	if end := time.Now().Add(req.TTL); end.After(e.expires) {
		e.expires = end // ends is too early now, which costs a look
	}
	return nil
}

// releaseEntry is Release for a group. Call with mu held.
func (b *Backend) releaseEntry(req backend.Request) error {
	g, e, err := b.ownedEntry(req)
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

// inspectGroup shows the entry whose time is over first. Call with mu held.
func (b *Backend) inspectGroup(key string) inspect.Inspection {
	g := b.group(key)
	defer b.tidy(key, g)
	return g.inspectAll(g.owned(""))
}

// inspectAll shows e, and all that have permits.
func (g *group) inspectAll(e *entry) inspect.Inspection {
	i := g.inspect(e)
	for _, other := range slices.SortedFunc(maps.Values(g.entries), func(a, b *entry) int {
		return a.expires.Compare(b.expires)
	}) {
		i.Holders = append(i.Holders, g.inspect(other))
	}
	for _, other := range g.kept {
		i.Holders = append(i.Holders, g.inspect(other))
	}
	for n := range i.Holders {
		i.Holders[n].Waiting = 0
	}
	return i
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
		i.Permits, i.Kind = slices.Clone(e.permits), e.kind.String()
		i.Owner = e.token[:min(ownerPrefixLen, len(e.token))]
		i.Remaining, i.Held = time.Until(e.expires), time.Since(e.since)
		if g.entries[e.token] == nil {
			i.State = inspect.Kept
		}
	}
	return i
}

// forceEntry releases and shows the entry of the owner whose token begins with owner. Without such an owner, it shows
// what inspectGroup does. Call with mu held.
func (b *Backend) forceEntry(key, owner string) (inspect.Inspection, error) {
	g := b.group(key)
	defer b.tidy(key, g)
	e := g.owned(owner)
	if e == nil {
		return g.inspect(g.owned("")), locker.ErrNotHeld
	}
	if n := len(g.entries) + len(g.kept); owner == "" && n > 1 {
		return g.inspectAll(e), fmt.Errorf("%w: %d owners have something of the group, and none is named",
			locker.ErrInvalid, n)
	}
	i := g.inspect(e)
	g.free(e)
	delete(g.entries, e.token)
	g.kept = slices.DeleteFunc(g.kept, func(other *entry) bool { return other == e })
	b.tell(key)
	b.handOn(key, g)
	return i, nil
}
