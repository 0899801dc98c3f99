package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// attempt is one attempt to acquire a lock, or some locks of a group.
//
// It writes them over a record of a known version, which says that each of them is free or that its time is over, or
// over none. If the outcome of that write is unknown, it is in doubt. A refusal does not end the doubt: a client
// library may have repeated the request, and report the success of the first one as a conflict. Nor does the end of the
// context, because the store may execute the request at any later time. The doubt ends only when another version is
// seen. That version has what the attempt has written, or it proves that the write can never take effect: the version
// that it expects does not come back, because no text is written twice.
//
// Others may replace the record of a group meanwhile, and leave these locks as they are. So an attempt knows what it
// has written by its nonce, and not by the version.
//
// If the attempt fails in doubt, it is undone by writing another record over the same version. One of the two is
// stored, and the other one is refused, whichever arrives first.
type attempt struct {
	*Backend
	reqs   []backend.Request
	at     []string // where the locks are, in the order of reqs
	choice backend.Choice
	gates  []string // where those of choice are
	from   string   // the owner of the text if the attempt resumes a lock that was passed on
	start  time.Time

	left   time.Duration // until a lock that is held counts as free
	misses int           // how many times it has written its locks, to end too early
	missed string        // the nonce of the last time
	doubt  bool          // a write was sent, and another version was not seen since
	over   *sheet        // the record that it expects
	wants  []content     // what it is to write, in the order of reqs; empty if it does not want that one
	locks  []content     // what it has written last
	grants []*backend.Grant

	err    error
	by     blocked           // a lock that is in the way
	held   *locker.HeldError // about that
	adopts bool              // what it writes is not for itself
	fresh  bool              // others cannot have released that lock before
}

// Acquire implements [backend.Backend].
func (b *Backend) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, _, _, err := b.acquire(ctx, req, req.TTL, 0)
	return g, err
}

// acquire makes one attempt, for limit at most. If the lock is held, left is how long it is until it counts as free.
// What was read of a group less than age ago tells that, too.
func (b *Backend) acquire(
	ctx context.Context, req backend.Request, limit, age time.Duration,
) (g backend.Grant, left time.Duration, owner string, err error) {
	t, err := asked(ctx, req)
	if t != nil || err != nil {
		if err := b.accepts(); err != nil {
			return backend.Grant{}, 0, "", err
		}
	}
	if err != nil {
		return backend.Grant{}, 0, "", err
	}
	if t != nil {
		ctx, cancel := b.bounded(ctx, min(limit, req.TTL))
		defer cancel()
		g, left, err = b.claim(ctx, req, t)
		return g, left, "", err
	}
	p := b.placeOf(req.Key)
	a := &attempt{Backend: b, reqs: []backend.Request{req}, at: []string{p.at}}
	if s := b.glance(p, age); s != nil {
		if a.start = time.Now(); len(a.look(s, true)) == 0 && errors.Is(a.err, locker.ErrHeld) {
			return backend.Grant{}, a.left, a.by.Owner, a.err
		}
	}
	if err := b.attempt(ctx, a, p, limit, b.seen.hint(p.name)); err != nil {
		return backend.Grant{}, a.left, a.by.Owner, err
	}
	return *a.grants[0], 0, "", nil
}

// attempt carries out an attempt. known is what the record is believed to say, or nil.
func (b *Backend) attempt(ctx context.Context, a *attempt, p place, limit time.Duration, known *sheet) error {
	if err := b.accepts(); err != nil {
		return err
	}
	a.start = time.Now()
	ctx, cancel := b.bounded(ctx, min(limit, a.reqs[0].TTL))
	defer cancel()
	defer func() {
		if a.doubt {
			a.undoLater()
		}
	}()
	return b.run(ctx, p, a, known)
}

// accepts returns an error if no attempt can be made.
func (b *Backend) accepts() error {
	if err := b.usable(); err != nil {
		return err
	}
	if err := b.chores.Backlog(); err != nil {
		return unavailable(err)
	}
	return nil
}

// AcquireMany implements [backend.ManyAcquirer], for locks of one group; see the package. There is no queue, so it
// overtakes those who wait for one of them.
func (b *Backend) AcquireMany(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
	a := &attempt{Backend: b, reqs: reqs, choice: c}
	first := b.placeOf(reqs[0].Key)
	for _, req := range reqs {
		a.at = append(a.at, b.placeOf(req.Key).at)
	}
	for _, gate := range c.Gates {
		a.gates = append(a.gates, b.placeOf(gate).at)
	}
	for _, key := range slices.Concat(a.keys(), c.Gates) {
		if p := b.placeOf(key); p != first && (p.at == "" || p.name != first.name) {
			return nil, errApart
		}
	}
	if err := b.attempt(ctx, a, first, reqs[0].TTL, b.seen.hint(first.name)); err != nil {
		return nil, err
	}
	return a.grants, nil
}

var errApart = fmt.Errorf("the locks are not those of one group: %w", errors.ErrUnsupported)

func (a *attempt) keys() []string {
	all := make([]string, len(a.reqs))
	for i, req := range a.reqs {
		all[i] = req.Key
	}
	return all
}

func (a *attempt) unread(err error) error { return err }

func (a *attempt) result() error {
	if a.grants != nil {
		a.doubt = false
	}
	return a.err
}

func (a *attempt) sends(s *sheet) {
	if !a.adopts {
		a.doubt, a.over, a.locks = true, s, a.wants
	}
}

func (a *attempt) ends(err error) bool {
	if !a.adopts || err != nil && !a.fresh {
		return false
	}
	if err != nil {
		a.held.Seen = a.by.watched()
	}
	return true
}

// look implements edit.
func (a *attempt) look(s *sheet, fresh bool) []change {
	a.grants, a.err, a.adopts = nil, nil, false
	found := make([]entry, len(a.reqs))
	var own []int
	stored := true
	for i, req := range a.reqs {
		found[i] = s.entry(a.at[i])
		if e := &found[i]; e.State == held && e.Owner == req.Token {
			own = append(own, i)
			stored = stored && len(a.locks) > 0 && e.is(a.locks[i].Nonce) && a.covers(&e.content, e.length(), e.at)
		}
	}
	// Who has its locks is in doubt until it is told so: it may yet have to wait for what others write.
	part := len(own) > 0 && len(own) < len(a.wrote())
	if a.doubt && fresh && s.version != a.over.version && len(own) == 0 {
		a.doubt = false
	}
	switch {
	case part: // some were released by force, and the others are undone
		a.err = errForced
		return nil
	case len(own) > 0 && stored:
		a.granted(found, own)
		return nil
	case len(own) > 0:
		if nonce := found[own[0]].Nonce; nonce != a.missed {
			a.misses, a.missed = a.misses+1, nonce
		}
		return a.take(found, own)
	}
	if a.doubt && s.version == a.over.version {
		// A version whose time was over stays so for an attempt that has written over it, although a clock that is behind
		// may answer now: an attempt in doubt is undone, and its caller must not acquire with the same token meanwhile.
		return a.take(found, a.wrote())
	}
	if a.from != "" {
		return a.resume(found)
	}
	var chosen []int
	if chosen, a.by = a.choose(s, found); chosen != nil {
		return a.take(found, chosen)
	}
	return a.refused(fresh)
}

var errForced = fmt.Errorf("%w: some of the locks were released by force at once", locker.ErrUnavailable)

// wrote returns the numbers of the locks that were written last.
func (a *attempt) wrote() (numbers []int) {
	for i := range a.locks {
		if a.locks[i].State == held {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// blocked is a lock that is in the way.
type blocked struct {
	key, at string
	entry
}

// choose returns the numbers of the locks to acquire. Without any, it returns a lock that is in the way.
func (a *attempt) choose(s *sheet, found []entry) (chosen []int, by blocked) {
	n := a.choice.N
	if n == 0 {
		n = len(a.reqs)
	}
	for i := range found {
		if found[i].left() == 0 {
			chosen = append(chosen, i)
		} else if by.key == "" {
			by = blocked{a.reqs[i].Key, a.at[i], found[i]}
		}
	}
	if spare := a.choice.Spare; spare == 0 || len(chosen) < n+spare {
		for i, at := range a.gates {
			if gate := s.entry(at); gate.left() > 0 {
				return nil, blocked{a.choice.Gates[i], at, gate}
			}
		}
	}
	if len(chosen) < n {
		return nil, by
	}
	return chosen[:n], blocked{}
}

// refused makes the attempt fail because of the lock that is in the way. It returns what is to be written about that.
func (a *attempt) refused(fresh bool) []change {
	a.left = a.by.left()
	a.held = a.by.heldError(a.left)
	a.err = a.held
	if len(a.reqs) > 1 || len(a.gates) > 0 {
		a.err = &locker.Error{Key: a.by.key, Err: a.held}
	}
	next := a.Backend.adopts(&a.by.entry)
	if a.adopts, a.fresh = next != nil, fresh; a.adopts {
		return []change{{at: a.by.at, next: next}}
	}
	a.held.Seen = a.by.watched()
	return nil
}

// maxDenied is how many times in a row a store may say that there is no record, and refuse to create it because there
// is one. If others create and delete it, that may be so, but not often.
const maxDenied = 8

var errDenied = fmt.Errorf("%w: the store refuses to create the record, because there is one, and says that there is "+
	"none: see what deletes records, such as the delete marker of a bucket with versions, and whether reads are fresh",
	locker.ErrUnavailable)

// take writes locks over a record that does not keep it from that. If the record is of an earlier call with the same
// token, as of a request that was sent twice, a lock keeps its tokens, and gets its whole TTL again.
func (a *attempt) take(found []entry, numbers []int) (changes []change) {
	a.wants = make([]content, len(a.reqs))
	// What makes tokens grow is the last one in the record. The clock makes it likely that they grow from key to key,
	// too, as those of readers and writers should, and over the deletion of a record.
	next := uint64(max(1, time.Now().UnixMicro()))
	for _, i := range numbers {
		req, e, lock := a.reqs[i], &found[i], &a.wants[i]
		*lock = content{State: held, Owner: req.Token, Label: req.Label, Length: milliseconds(req.TTL)}
		c := change{at: a.at[i], next: lock}
		if e.State == held && e.Owner == req.Token {
			c.own, c.misses = &e.content, a.misses
			lock.Token, lock.Last, lock.Over = e.Token, e.Last, e.Over
			lock.Length = max(lock.Length, e.Length)
		} else {
			lock.Token = max(e.Last+1, e.issued+1, next)
			lock.Last, lock.Over = lock.Token+uint64(max(1, req.Fences))-1, e.before()
			next = lock.Last + 1
		}
		if lock.Last > maxToken {
			a.err = errTokens(max(e.Last, e.issued))
			return nil
		}
		changes = append(changes, c)
	}
	return changes
}

func errTokens(last uint64) error {
	return fmt.Errorf("%w: tokens end at 2⁵³, and the record has %d: delete it while nobody has the lock",
		locker.ErrUnavailable, last)
}

// granted makes the attempt succeed.
func (a *attempt) granted(found []entry, numbers []int) {
	a.grants = make([]*backend.Grant, len(a.reqs))
	for _, i := range numbers {
		e := found[i]
		h := &holding{since: a.start, ends: a.start.Add(a.reqs[i].TTL)}
		h.saw(e)
		a.grants[i] = &backend.Grant{Fence: e.Token, Fences: int(e.Last - e.Token + 1), Private: h}
	}
}

// heldError describes who has the lock. left is how long it is until it counts as free.
func (e *entry) heldError(left time.Duration) *locker.HeldError {
	err := &locker.HeldError{Remaining: min(left, e.length())}
	if e.State == held {
		err.Label = e.Label
	}
	return err
}

// undoLater undoes the attempt in the background.
func (a *attempt) undoLater() {
	u := undoing{over: a.over}
	for _, i := range a.wrote() {
		u.at, u.locks = append(u.at, a.at[i]), append(u.locks, a.locks[i])
	}
	b, p := a.Backend, a.placeOf(a.reqs[0].Key)
	b.chores.Repeat(a.start.Add(a.reqs[0].TTL+cleanupTime), func(ctx context.Context) error {
		return b.run(ctx, p, &u, u.over)
	})
}

// undoing makes sure that the write of an attempt has no effect, now or later. What it writes instead has the tokens of
// the attempt behind it, so nobody else gets them.
type undoing struct {
	over  *sheet    // the record that the attempt expects
	at    []string  // where the locks are that it may have written
	locks []content // what it has written
}

func (u *undoing) sends(*sheet)    {}
func (u *undoing) ends(error) bool { return false }
func (u *undoing) result() error   { return nil }

func (u *undoing) unread(err error) error {
	if errors.Is(err, locker.ErrForeignKey) {
		return nil
	}
	return err
}

// look implements edit.
func (u *undoing) look(s *sheet, _ bool) (changes []change) {
	for i, at := range u.at {
		lock, e, was := &u.locks[i], s.entry(at), u.over.entry(at)
		next := &content{State: free, Owner: lock.Owner, Last: lock.Last, Over: lock.Over}
		switch {
		case e.State == held && e.Owner == lock.Owner:
			next.Last = e.Last
		case s.version != u.over.version, // it never took effect, and never will
			e.Owner != was.Owner || e.Nonce != was.Nonce: // what another edit of the lane writes is as good
			continue
		}
		changes = append(changes, change{at: at, next: next})
	}
	return changes
}
