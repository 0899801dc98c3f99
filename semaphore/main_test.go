package semaphore_test

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key = "exports"
	ttl = 3 * time.Second
)

// world is what a test runs in.
type world struct{ *placestest.World }

// stores runs f in virtual time for each kind of store.
func stores(t *testing.T, f func(w *world)) {
	placestest.Each(t, func(w *placestest.World) { f(&world{w}) })
}

func (w *world) lock(l locker.Locker, opts ...locker.Option) *semaphore.Permit {
	w.Helper()
	lease := w.Lock(l, key, append(opts, locker.TTL(ttl))...)
	p, ok := semaphore.PermitOf(lease)
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

// judge knows who has which permit.
type judge struct {
	mu      sync.Mutex
	holders map[int]uint64 // the token of the holder, by slot
	last    map[int]uint64 // the greatest token, by slot
	most    int
}

func (j *judge) enter(t *testing.T, p *semaphore.Permit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.holders == nil {
		j.holders, j.last = map[int]uint64{}, map[int]uint64{}
	}
	for _, slot := range p.Slots() {
		if token, ok := j.holders[slot]; ok {
			t.Errorf("slot %d has two holders, %d and %d", slot, token, p.Fence())
		}
		if p.Fence() <= j.last[slot] {
			t.Errorf("slot %d: token %d after %d", slot, p.Fence(), j.last[slot])
		}
		j.holders[slot], j.last[slot] = p.Fence(), p.Fence()
	}
	j.most = max(j.most, len(j.holders))
}

func (j *judge) leave(p *semaphore.Permit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, slot := range p.Slots() {
		delete(j.holders, slot)
	}
}
