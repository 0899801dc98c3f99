package rwlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/placestest"
	"github.com/golocker/locker/rwlock"
)

// A caller dies while it waits, and those that have the key leave. Others wait for the TTL of the gate then, and not
// for that of the dead caller, although a writer that dies has all slots but one.
func TestDeadWaiterKeepsOthersForTheTTLOfTheGate(t *testing.T) {
	stores(t, func(w *world) {
		for name, tt := range map[string]struct {
			holds, dies func(rw *rwlock.RWLock) locker.Locker
		}{
			"a reader behind a writer": {(*rwlock.RWLock).Exclusive, (*rwlock.RWLock).Shared},
			"a writer behind a reader": {(*rwlock.RWLock).Shared, (*rwlock.RWLock).Exclusive},
			"a writer behind a writer": {(*rwlock.RWLock).Exclusive, (*rwlock.RWLock).Exclusive},
		} {
			held := w.lock(tt.holds(w.process()))
			ctx, die := context.WithCancel(w.Context())
			over := make(chan struct{})
			go func() {
				defer close(over)
				l := tt.dies(rwlock.New(w.Client()))
				if _, err := l.Lock(ctx, key, locker.TTL(time.Minute), locker.Label("dies")); err == nil {
					w.Errorf("%s: the dead caller has the key", name)
				}
			}()
			time.Sleep(10 * time.Second)
			w.Calls.Kill("dies")
			die()
			time.Sleep(time.Millisecond) // the queues of the store forget it
			w.Unlock(held)
			start := time.Now()
			lease := w.lock(w.process().Exclusive())
			if took := time.Since(start); took > 5*time.Second {
				w.Errorf("%s: it died while it waited, and others waited for %v", name, took)
			}
			w.Unlock(lease)
			<-over
			w.Calls.Kill("")
			time.Sleep(time.Minute) // so that nothing more is done for it
		}
		w.empty()
	})
}

// A writer has some slots long before the last one. MaxHold and the TTL without renewal count from when it has all,
// also behind a middleware whose leases have no Unwrap.
func TestTimesOfAWriterCountFromTheLastSlot(t *testing.T) {
	stores(t, func(w *world) {
		const d = 5 * time.Second
		for _, wrap := range []locker.Middleware{locker.Defaults(), placestest.Opaque} {
			for name, opts := range map[string][]locker.Option{
				"MaxHold":   {locker.MaxHold(d), locker.TTL(2 * d)},
				"NoRenewal": {locker.NoRenewal(), locker.TTL(d)},
			} {
				held := w.lock(w.process().Shared())
				time.AfterFunc(4*d, func() { w.Unlock(held) })
				start := time.Now()
				lease := w.lock(rwlock.New(wrap(w.Client())).Exclusive(), opts...)
				if waited := time.Since(start); waited > 4*d+5*time.Second {
					w.Errorf("%s: a writer waited for %v", name, waited)
				}
				if left := time.Until(lease.Until()); left < d-time.Second {
					w.Errorf("%s: a writer has %v of %v left", name, left, d)
				}
				time.Sleep(d)
				if lease.Err() == nil {
					w.Errorf("%s: the lease has no end", name)
				}
				_ = lease.Unlock(w.Context())
			}
		}
		w.empty()
	})
}
