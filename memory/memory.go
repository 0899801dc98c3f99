// Package memory keeps locks in the memory of this process. It is the embedded default: the same Lock and Unlock as on
// Redis, with expiry, renewal and fencing tokens, without anything to install. It is also what belongs in unit tests,
// where it works under the virtual clock of testing/synctest.
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
// It is safe for concurrent use. Its memory is proportional to the number of locks held.
type Backend struct {
	mu    sync.Mutex
	locks map[string]entry
	sweep int    // number of entries at which expired ones are looked for
	fence uint64 // last token issued, for any key
}

type entry struct {
	token   string
	fence   uint64
	expires time.Time
}

// NewBackend returns an empty store.
func NewBackend() *Backend {
	return &Backend{locks: make(map[string]entry), sweep: minSweep}
}

// minSweep keeps small stores from being swept at all: their expired entries are found when their key is next used.
const minSweep = 64

// held returns the entry of key if there is one that has not expired. Call with mu held.
func (b *Backend) held(key string) (entry, bool) {
	e, ok := b.locks[key]
	if ok && !time.Now().Before(e.expires) {
		delete(b.locks, key)
		return entry{}, false
	}
	return e, ok
}

// Acquire implements [locker.Backend].
func (b *Backend) Acquire(_ context.Context, req locker.Request) (locker.Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.held(req.Key)
	if ok && e.token != req.Token {
		return locker.Grant{}, &locker.HeldError{Remaining: time.Until(e.expires)}
	}
	if !ok {
		b.dropExpired()
		b.fence++
		e = entry{req.Token, b.fence, time.Now().Add(req.TTL)}
		b.locks[req.Key] = e
	}
	return locker.Grant{Fence: e.fence}, nil
}

// Extend implements [locker.Backend].
func (b *Backend) Extend(_ context.Context, req locker.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.held(req.Key)
	if !ok || e.token != req.Token {
		return locker.ErrNotHeld
	}
	if end := time.Now().Add(req.TTL); end.After(e.expires) {
		e.expires = end
		b.locks[req.Key] = e
	}
	return nil
}

// Release implements [locker.Backend].
func (b *Backend) Release(_ context.Context, req locker.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.held(req.Key)
	if !ok || e.token != req.Token {
		return locker.ErrNotHeld
	}
	delete(b.locks, req.Key)
	return nil
}

// dropExpired removes what crashed holders left behind. It runs each time the store has doubled since the last sweep,
// so it costs a constant amount per acquisition. Call with mu held.
func (b *Backend) dropExpired() {
	if len(b.locks) < b.sweep {
		return
	}
	now := time.Now()
	for key, e := range b.locks {
		if !now.Before(e.expires) {
			delete(b.locks, key)
		}
	}
	b.sweep = max(minSweep, 2*len(b.locks))
}
