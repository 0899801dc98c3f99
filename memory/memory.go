// Package memory keeps locks in the memory of this process. These locks exclude the goroutines of one process from each
// other, and nobody else.
//
// They work like locks on Redis, with expiry, renewal, fencing tokens and waiting in the order of arrival, but need no
// server. Use the package in programs that run as one process, and in unit tests. It works with the virtual clock of
// testing/synctest. Package lockertest has the same store with faults: it can be down, be slow, and lose a lock.
//
// Under the race detector of Go 1.26, call runtime.GOMAXPROCS(1) in a test that uses synctest. Otherwise the detector
// crashes when two goroutines of a bubble read expired timers at the same time. This is not specific to this package.
package memory

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// New returns a Locker with a new store. No other Locker sees its locks.
func New() *locker.Client { return locker.NewClient(NewBackend()) }

// Backend is a store of locks. Several Clients can share it, as several processes share a Redis server:
//
//	store := memory.NewBackend()
//	a, b := locker.NewClient(store), locker.NewClient(store) // a and b contend
//
// It is safe for concurrent use. Its memory use is proportional to the number of locks that are held or waited for.
type Backend struct {
	mu     sync.Mutex
	locks  map[string]*lock
	groups map[string]*group // see backend.Group
	sweep  int               // when there are this many locks and groups, unused ones are removed
	fence  uint64            // the last fencing token that was issued, for any key

	watchers map[string][]*func() // what Watch was given, by key
	holders  map[string][]*func() // what NotifyWanted was given, by token
	told     []*func()            // those that unlock calls
}

// lock is the lock of one key, with its owner and its waiters.
type lock struct {
	token   string // of the owner; empty if there is none, as after a release with Keep
	label   string // of the owner
	fence   uint64
	fences  int       // how many tokens it has, from fence on
	since   time.Time // when it was granted
	expires time.Time
	waiting []*waiter // in the order of their arrival
}

// NewBackend returns an empty store. Its fencing tokens begin at the microseconds of the clock. So they are past those
// of an earlier store, unless that one granted more than 7,812 locks a second on average, over all its keys, and each
// while other callers of the Client waited. Such a grant draws 128 tokens. Others draw one, so that takes a million.
func NewBackend() *Backend {
	return &Backend{
		locks: make(map[string]*lock), sweep: minSweep, fence: uint64(time.Now().UnixMicro()),
		groups: make(map[string]*group), watchers: make(map[string][]*func()), holders: make(map[string][]*func()),
	}
}

// minSweep is the smallest number of locks at which unused ones are removed. In a smaller store, an expired lock stays
// until its key is used again.
const minSweep = 64

// Acquire implements [backend.Backend].
func (b *Backend) Acquire(_ context.Context, req backend.Request) (backend.Grant, error) {
	if req.Group != nil {
		return b.acquireEntry(req)
	}
	b.mu.Lock()
	defer b.unlock()
	l := b.lock(req.Key)
	if l.token != req.Token || !l.taken() {
		if l.taken() {
			return backend.Grant{}, l.held()
		}
		b.grant(l, req, req.Fences)
	}
	return l.granted(), nil
}

// Capabilities implements [backend.Capable].
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Tokens: true, CommonTokens: true, Blocks: true, Order: true, Labels: true, CountsTime: true,
		Some: true, Groups: true, Kinds: true,
	}
}

// AcquireMany implements [backend.ManyAcquirer].
func (b *Backend) AcquireMany(
	_ context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	n := cmp.Or(c.N, len(reqs))
	b.mu.Lock()
	defer b.unlock()
	var held error
	var own, free []int
	for i, req := range reqs {
		switch l := b.seen(req.Key); {
		case l == nil:
			free = append(free, i)
		case l.token == req.Token: // the request was sent twice
			own = append(own, i)
		case held == nil:
			held = &locker.Error{Op: "trylock", Key: req.Key, Err: l.held()}
		}
	}
	if len(own) < n {
		plenty := c.Spare > 0 && len(own)+len(free) >= n+c.Spare
		for _, gate := range c.Gates {
			if l := b.seen(gate); l != nil && !plenty { // otherwise nobody waits for it
				return nil, &locker.Error{Op: "trylock", Key: gate, Err: l.held()}
			}
		}
		if len(own)+len(free) < n {
			return nil, held
		}
	}
	chosen := slices.Concat(own, free[:max(0, n-len(own))])
	grants := make([]*backend.Grant, len(reqs))
	for _, i := range chosen {
		l := b.lock(reqs[i].Key)
		if !l.taken() {
			b.grant(l, reqs[i], 1)
		}
		g := l.granted()
		grants[i] = &g
	}
	return grants, nil
}

// seen returns the lock of key, or nil if it is free. If it has expired, it is first handed to the next waiter. Call
// with mu held.
func (b *Backend) seen(key string) *lock {
	l, ok := b.locks[key]
	if !ok {
		return nil
	}
	b.next(key, l)
	if !l.taken() {
		return nil
	}
	return l
}

// Extend implements [backend.Backend].
func (b *Backend) Extend(_ context.Context, req backend.Request) error {
	b.mu.Lock()
	defer b.unlock()
	if req.Group != nil {
		return b.extendEntry(req)
	}
	l, err := b.owned(req)
	if err != nil {
		return err
	}
	if end := time.Now().Add(req.TTL); end.After(l.expires) {
		l.expires = end
	}
	return nil
}

// Release implements [backend.Backend].
func (b *Backend) Release(_ context.Context, req backend.Request) error {
	b.mu.Lock()
	defer b.unlock()
	if req.Group != nil {
		return b.releaseEntry(req)
	}
	l, err := b.owned(req)
	if err != nil {
		return err
	}
	l.token, l.label = "", ""
	l.expires = time.Now().Add(req.Keep)
	b.next(req.Key, l)
	l.tellSooner()
	b.tell(req.Key)
	return nil
}

// owned returns the lock of req.Key if req.Token owns it. Call with mu held.
func (b *Backend) owned(req backend.Request) (*lock, error) {
	l, ok := b.locks[req.Key]
	switch {
	case !ok || !l.taken() || l.token == "":
		return nil, locker.ErrNotHeld
	case l.token != req.Token:
		return nil, &locker.NotHeldError{Reason: locker.LostTakenOver}
	}
	return l, nil
}

// lock returns the lock of key. If it has expired, it is first handed to the next waiter, because waiters come before
// new callers. Call with mu held.
func (b *Backend) lock(key string) *lock {
	l, ok := b.locks[key]
	if !ok {
		b.dropUnused()
		l = &lock{}
		b.locks[key] = l
	} else if !l.taken() {
		b.next(key, l)
		b.locks[key] = l
	}
	return l
}

// taken reports whether the lock has an owner, or stays taken after a release with Keep.
func (l *lock) taken() bool { return time.Now().Before(l.expires) }

// held describes the holder of a lock that is taken.
func (l *lock) held() *locker.HeldError {
	return &locker.HeldError{Remaining: max(0, time.Until(l.expires)), Label: l.label}
}

// granted is the Grant of the lock.
func (l *lock) granted() backend.Grant { return backend.Grant{Fence: l.fence, Fences: l.fences} }

func (b *Backend) grant(l *lock, req backend.Request, fences int) {
	l.fence, l.fences = b.fence+1, max(1, fences)
	b.fence += uint64(l.fences)
	l.token, l.label, l.since = req.Token, req.Label, time.Now()
	l.expires = l.since.Add(req.TTL)
	b.tell(req.Key)
}

// next grants a free lock to the first waiter, or removes it from the store if there is none. Call with mu held.
func (b *Backend) next(key string, l *lock) {
	switch {
	case l.taken():
	case len(l.waiting) == 0:
		delete(b.locks, key)
	default:
		w := l.waiting[0]
		l.waiting = l.waiting[1:]
		b.grant(l, w.req, w.wait.Fences())
		w.grant = l.granted()
		w.grant.Sent = l.since
		w.tell(true)
		l.tellSooner()
	}
}

// tellSooner wakes the waiters that would sleep for longer than the lock lasts. Call with mu held.
func (l *lock) tellSooner() {
	for _, w := range l.waiting {
		if l.expires.Before(w.until) {
			w.tell(false)
		}
	}
}

// dropUnused removes the expired locks of holders that have crashed. It does so when the number of locks has doubled
// since the last time, so the cost per acquisition is constant. Call with mu held.
func (b *Backend) dropUnused() {
	if len(b.locks)+len(b.groups) < b.sweep {
		return
	}
	for key, l := range b.locks {
		b.next(key, l)
	}
	for key, g := range b.groups {
		b.handOn(key, g)
		b.tidy(key, g)
	}
	b.sweep = max(minSweep, 2*(len(b.locks)+len(b.groups)))
}
