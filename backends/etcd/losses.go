package etcd

import (
	"time"

	"github.com/golocker/locker"
)

// watchAfter is how long a lock is held before its entry is watched. So a short critical section costs etcd no watch. A
// deletion before that is reported then, because a watch begins with the past.
const watchAfter = 250 * time.Millisecond

// NotifyLoss implements [locker.LossNotifier].
func (b *Backend) NotifyLoss(req locker.Request, lost func(err error)) (stop func()) {
	w := &b.losses
	e := &watched{
		name: b.entry(req.Key, req.Token), from: int64(req.Fence) + 1, told: func() { lost(locker.ErrNotHeld) },
	}
	stopped := false // guarded by the mu of w
	timer := time.AfterFunc(watchAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !stopped {
			w.add(e)
		}
	})
	return func() {
		timer.Stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		stopped = true
		w.remove(e)
	}
}
