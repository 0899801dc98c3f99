package conformance

import (
	"testing"
	"time"

	"github.com/golocker/locker"
)

// reports is what NotifyLoss has reported of a lock.
type reports chan error

// notified calls NotifyLoss as a Client does.
func (o *holding) notified(n locker.LossNotifier) (r reports, stop func()) {
	r = make(reports, 10)
	return r, n.NotifyLoss(o.req, func(err error) {
		select {
		case r <- err:
		default: // there are enough
		}
	})
}

func notifyLossTells(t testing.TB, h Harness) {
	bs, s := backends(t, h, 1)
	n, ok := bs[0].(locker.LossNotifier)
	switch {
	case !ok:
		t.Skip("the Backend does not implement locker.LossNotifier: its Client learns of losses by renewals")
	case s.Delete == nil:
		t.Skip("the harness has no Delete")
	}
	kept, lost, released := grab(t, bs[0], "kept", longTTL), grab(t, bs[0], "lost", longTTL), grab(t, bs[0], "r", longTTL)
	ofKept, stopKept := kept.notified(n)
	ofLost, stopLost := lost.notified(n)
	ofReleased, stopReleased := released.notified(n)
	if err := kept.extend(t.Context(), 2*longTTL); err != nil {
		t.Fatalf("Extend of a held lock: expected no error, seen %v", err)
	}
	stopReleased()
	released.must(t)
	s.Delete("lost")
	timer := time.NewTimer(recovery)
	defer timer.Stop()
	select {
	case err := <-ofLost:
		wantKind(t, "the report about a lock that was deleted", err, locker.ErrNotHeld)
	case <-timer.C:
		t.Errorf("a lock was deleted: expected a report within %v, seen none", recovery)
	}
	stopLost()
	timer.Reset(stall)
	select {
	case err := <-ofKept:
		t.Errorf("a lock that is held: expected no report, seen %v", err)
	case <-timer.C:
	}
	stopKept()
	kept.must(t)
	if len(ofReleased) > 1 {
		t.Errorf("NotifyLoss after stop: expected one report at most, seen %d", len(ofReleased))
	}
}
