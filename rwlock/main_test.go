package rwlock_test

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/rwlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key    = "config"
	ttl    = 3 * time.Second
	intent = "{" + key + "}#rwintent"
	gate   = "{" + key + "}#rwgate"
	group  = "{" + key + "}#rw"
)

// The public suite, on each kind of store.
func TestConformance(t *testing.T) { placestest.Conform(t, conformance.RunRWLock) }

// world is what a test runs in.
type world struct{ *placestest.World }

// stores runs f in virtual time for each kind of store.
func stores(t *testing.T, f func(w *world)) {
	placestest.Each(t, func(w *placestest.World) { f(&world{w}) })
}

// process returns the RWLock of a new process, in which leases have the TTL of the tests.
func (w *world) process() *rwlock.RWLock {
	return rwlock.New(locker.Defaults(locker.TTL(ttl))(w.Client()))
}

func (w *world) lock(l locker.Locker, opts ...locker.Option) locker.Lease {
	w.Helper()
	return w.Lock(l, key, opts...)
}

// refused fails the test unless l refuses the key now.
func (w *world) refused(l locker.Locker) {
	w.Helper()
	lease, err := l.TryLock(w.Context(), key)
	if !errors.Is(err, locker.ErrHeld) {
		w.Errorf("TryLock: %v", err)
	}
	if err == nil {
		w.Unlock(lease)
	}
}

// waiting calls Lock in the background. It returns when the call waits.
func (w *world) waiting(l locker.Locker, opts ...locker.Option) <-chan locker.Lease {
	got := make(chan locker.Lease, 1)
	go func() { got <- w.lock(l, opts...) }()
	time.Sleep(time.Second)
	select {
	case <-got:
		w.Fatal("the call does not wait")
	default:
	}
	return got
}

// empty fails the test unless nobody holds or waits for a lock of the key.
func (w *world) empty() {
	w.Helper()
	w.Settle()
	w.Free(intent, gate)
	lease, err := w.process().Exclusive().TryLock(w.Context(), key)
	if err != nil {
		w.Errorf("something is left behind: %v", err)
		return
	}
	w.Unlock(lease)
}

// judge knows who holds the key.
type judge struct {
	*testing.T
	mu                          sync.Mutex
	readers, writers, upgraders int
	most                        int    // readers at a time
	greatest, ofWriters         uint64 // tokens of those that have held it
	entered                     int    // readers that have entered
}

func (j *judge) enter(kind string, l locker.Lease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case kind == "write" && j.readers+j.writers+j.upgraders > 0,
		j.writers > 0, kind == "upgradeable" && j.upgraders > 0:
		j.Errorf("%s beside %d readers, %d writers and %d upgradeable", kind, j.readers, j.writers, j.upgraders)
	case kind == "write" && l.Fence() <= j.greatest:
		j.Errorf("a writer has the token %d after %d", l.Fence(), j.greatest)
	case l.Fence() <= j.ofWriters:
		j.Errorf("a reader has the token %d after %d of a writer", l.Fence(), j.ofWriters)
	case l.Err() != nil:
		j.Error(l.Err())
	}
	j.greatest = max(j.greatest, l.Fence())
	switch kind {
	case "write":
		j.writers++
		j.ofWriters = l.Fence()
	case "upgradeable":
		j.upgraders++
	default:
		j.readers++
		j.entered++
		j.most = max(j.most, j.readers)
	}
}

func (j *judge) leave(kind string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch kind {
	case "write":
		j.writers--
	case "upgradeable":
		j.upgraders--
	default:
		j.readers--
	}
}

// downgrade makes a writer a reader. Others may come before Downgrade returns.
func (j *judge) downgrade(l locker.Lease) locker.Lease {
	j.mu.Lock()
	j.writers--
	j.readers++
	j.mu.Unlock()
	reads, err := rwlock.Downgrade(j.Context(), wrapping{l})
	if err != nil {
		j.Fatal(err)
	}
	if reads.Fence() != l.Fence() || !errors.Is(l.Err(), locker.ErrUnlocked) {
		j.Errorf("downgraded from the token %d to %d; the old lease: %v", l.Fence(), reads.Fence(), l.Err())
	}
	return reads
}

// slot returns the name of the lock of a slot.
func slot(i int) string { return "{" + key + "}#rw" + strconv.Itoa(i) }
