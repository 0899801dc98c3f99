// Package memory keeps locks in the memory of this process. It is the embedded default: the same Lock and Unlock as on
// Redis, with expiry, renewal, fencing tokens and first-come-first-served waiting, without anything to install. It is
// also what belongs in unit tests, where it works under the virtual clock of testing/synctest.
// (Under the race detector of Go 1.26, give such a test one processor, runtime.GOMAXPROCS(1): two goroutines of a
// bubble that read expired timers at once crash the detector, whoever's timers they are.)
//
// Locks kept here exclude goroutines of one process from each other, and nobody else.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/golocker/locker"
)

// New returns a Locker with a store of its own. Nothing else can see its locks.
func New() *locker.Client { return locker.NewClient(NewBackend()) }

// Backend is a store of locks that several Clients can share, as several processes share a Redis server:
//
//	store := memory.NewBackend()
//	a, b := locker.NewClient(store), locker.NewClient(store) // a and b contend
//
// It is safe for concurrent use. Its memory is proportional to the number of locks held and waited for.
type Backend struct {
	mu    sync.Mutex
	locks map[string]*lock
	sweep int    // number of locks at which those of no use any more are looked for
	fence uint64 // last token issued, for any key
}

// lock is one key's: who has it until when, and who comes next.
type lock struct {
	token   string // "": nobody, as after a release with Keep
	fence   uint64
	since   time.Time // when it was granted
	expires time.Time
	waiting []*waiter // in the order of their arrival
}

// NewBackend returns an empty store.
func NewBackend() *Backend {
	return &Backend{locks: make(map[string]*lock), sweep: minSweep}
}

// minSweep keeps small stores from being swept at all: their expired locks are found when their key is next used.
const minSweep = 64

// Acquire implements [locker.Backend].
func (b *Backend) Acquire(_ context.Context, req locker.Request) (locker.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lock(req.Key)
	if l.token != req.Token || !l.taken() {
		if l.taken() {
			return locker.Grant{}, &locker.HeldError{Remaining: time.Until(l.expires)}
		}
		b.grant(l, req)
	}
	return locker.Grant{Fence: l.fence}, nil
}

// Extend implements [locker.Backend].
func (b *Backend) Extend(_ context.Context, req locker.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, err := b.owned(req)
	if err != nil {
		return err
	}
	if end := time.Now().Add(req.TTL); end.After(l.expires) {
		l.expires = end
	}
	return nil
}

// Release implements [locker.Backend].
func (b *Backend) Release(_ context.Context, req locker.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, err := b.owned(req)
	if err != nil {
		return err
	}
	l.token = ""
	l.expires = time.Now().Add(req.Keep)
	b.next(req.Key, l)
	return nil
}

// owned returns the lock if it is req's. Call with mu held.
func (b *Backend) owned(req locker.Request) (*lock, error) {
	l, ok := b.locks[req.Key]
	switch {
	case !ok || !l.taken() || l.token == "":
		return nil, locker.ErrNotHeld
	case l.token != req.Token:
		return nil, &locker.NotHeldError{Reason: locker.LostTakenOver}
	}
	return l, nil
}

// lock returns the lock of key, after handing it on if it has expired: whoever waits for it comes before whoever asks
// now. Call with mu held.
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

// taken reports whether somebody has the lock, or nobody may have it yet.
func (l *lock) taken() bool { return time.Now().Before(l.expires) }

func (b *Backend) grant(l *lock, req locker.Request) {
	b.fence++
	l.token, l.fence, l.since = req.Token, b.fence, time.Now()
	l.expires = l.since.Add(req.TTL)
}

// next grants a lock that is free to the first that waits, and forgets one that nobody wants. Call with mu held.
func (b *Backend) next(key string, l *lock) {
	switch {
	case l.taken():
	case len(l.waiting) == 0:
		delete(b.locks, key)
	default:
		w := l.waiting[0]
		l.waiting = l.waiting[1:]
		b.grant(l, w.req)
		w.granted <- locker.Grant{Fence: l.fence, Sent: time.Now()}
	}
}

// dropUnused removes what crashed holders left behind. It runs each time the store has doubled since the last sweep,
// so it costs a constant amount per acquisition. Call with mu held.
func (b *Backend) dropUnused() {
	if len(b.locks) < b.sweep {
		return
	}
	for key, l := range b.locks {
		b.next(key, l)
	}
	b.sweep = max(minSweep, 2*len(b.locks))
}
