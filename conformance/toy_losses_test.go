package conformance

import (
	"errors"
	"time"

	"github.com/golocker/locker"
)

var lossFlaws = []flaw{
	{name: "none, and it notices losses", role: losing},
	{name: "reports no loss", fails: []string{"NotifyLossTells"}, role: losing,
		store: func(s *toy) { s.hidesLosses = true }},
	{name: "reports a loss as a fault", fails: []string{"NotifyLossTells"}, role: losing,
		store: func(s *toy) { s.lossIsFault = true }},
	{name: "reports the loss of another lock", fails: []string{"NotifyLossTells"}, role: losing, broad: true,
		store: func(s *toy) { s.mistakesLosses = true }},
}

func losing(b *toyBackend) locker.Backend { return toyLossNotifier{b} }

type toyLossNotifier struct{ *toyBackend }

// NotifyLoss looks at the lock every ten milliseconds.
func (b toyLossNotifier) NotifyLoss(req locker.Request, lost func(err error)) (stop func()) {
	s := b.toy
	s.mu.Lock()
	defer s.mu.Unlock()
	locks, stopped := len(s.locks), false // at the last look
	var look *time.Timer
	look = time.AfterFunc(10*time.Millisecond, func() {
		s.mu.Lock()
		fewer := len(s.locks) < locks
		locks = len(s.locks)
		reports := !s.owns(s.locks[req.Key], req) && !s.hidesLosses || fewer && s.mistakesLosses
		if !stopped && !reports {
			look.Reset(10 * time.Millisecond)
		}
		reports = reports && !stopped
		s.mu.Unlock()
		if reports && s.lossIsFault {
			lost(errors.New("oops"))
		} else if reports {
			lost(locker.ErrNotHeld)
		}
	})
	return func() { s.with(func() { stopped = true }) }
}
