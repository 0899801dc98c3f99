package nats

import (
	"sync/atomic"
	"time"
)

// turn decides when a waiter tries to take a lock that was released, so that the one that has waited longest tries
// first. If all tried at once, all but one would ask in vain, and chance would decide which.
//
// There is no queue in the store. Each waiter counts the holders for whose releases it has waited. The record of the
// free lock says how many the last owner had counted. A waiter that has counted fewer lets those go first that may have
// counted more: it tries a little later, and not at all if it learns meanwhile that the lock is taken. This is advice
// only, and the record decides who gets the lock. If messages are lost, or the others have gone, a waiter tries late by
// maxDelay at most.
type turn struct {
	wake func()
	step func() time.Duration // how long another waiter takes to try

	waited atomic.Int64 // the holders; it begins with 1
	later  *time.Timer  // nil: there was no delay yet
}

// maxDelay is the longest delay, whatever others have counted.
const maxDelay = 100 * time.Millisecond

func newTurn(wake func(), step func() time.Duration) *turn {
	t := &turn{wake: wake, step: step}
	t.waited.Store(1)
	return t
}

// told is called with the state of each record that is stored, one call after the other. front is what the owner who
// has released the lock had counted.
func (t *turn) told(s state, front int64) {
	switch s {
	case held:
		t.stop()
		t.waited.Add(1)
	case free:
		t.stop()
		if before := front - t.waited.Load(); before > 0 {
			t.later = time.AfterFunc(min(t.step()*time.Duration(min(before, 1000)), maxDelay), t.wake)
		} else {
			t.wake()
		}
	case reconnected:
		t.wake()
	}
}

// stop ends a delay.
func (t *turn) stop() {
	if t.later != nil {
		t.later.Stop()
	}
}

// waited returns how many holders the Backend has waited for that now gets the lock, or 0 if it did not wait.
func (b *Backend) waited(subject string) int64 {
	if t, ok := b.turns.Load(subject); ok {
		return t.(*turn).waited.Load()
	}
	return 0
}

// pace is how long an exchange with the server takes, a moving average.
type pace struct{ nanos atomic.Int64 }

func (p *pace) took(d time.Duration) {
	const weight = 8
	if old := p.nanos.Load(); old != 0 {
		d = time.Duration(old) + (d-time.Duration(old))/weight
	}
	p.nanos.Store(int64(d))
}

// step returns the time in which another waiter learns of a release, takes the lock, and the others learn of that.
func (p *pace) step() time.Duration { return 2 * time.Duration(p.nanos.Load()) }
