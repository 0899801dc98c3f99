package semaphore_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key = "exports"
	ttl = 3 * time.Second
)

// The public suite, on each kind of store.
func TestConformance(t *testing.T) { placestest.Conform(t, conformance.RunSemaphore) }

// world is what a test runs in.
type world struct{ *placestest.World }

// stores runs f in virtual time for each kind of store.
func stores(t *testing.T, f func(w *world)) {
	placestest.Each(t, func(w *placestest.World) { f(&world{w}) })
}

func (w *world) lock(l locker.Locker, opts ...locker.Option) *semaphore.Permit {
	w.Helper()
	lease := w.Lock(l, key, append(opts, locker.TTL(ttl))...)
	p, ok := locker.LeaseAs[*semaphore.Permit](lease)
	if !ok {
		w.Fatalf("the lease is a %T", lease)
	}
	return p
}

// empty fails the test unless all n permits can be acquired at once, and nobody has the gate.
func (w *world) empty(n int) {
	w.Helper()
	w.Settle()
	w.Free("{" + key + "}#gate")
	lease, err := semaphore.New(w.Client(), n).Weight(n).TryLock(w.Context(), key)
	if err != nil {
		w.Errorf("something is left behind: %v", err)
		return
	}
	w.Unlock(lease)
}
