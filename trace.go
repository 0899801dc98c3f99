package locker

import (
	"time"

	"github.com/golocker/locker/lockertrace"
)

func attempted(t *lockertrace.Trace, start time.Time, err error) {
	if t != nil && t.Attempted != nil {
		t.Attempted(lockertrace.Attempt{Duration: time.Since(start), Err: err})
	}
}

func waiting(t *lockertrace.Trace, held HeldError) {
	if t != nil && t.Waiting != nil {
		t.Waiting(lockertrace.Waiting{Remaining: held.Remaining, Label: held.Label})
	}
}

func woken(t *lockertrace.Trace, reason lockertrace.WakeReason, since time.Time) {
	if t != nil && t.Woken != nil {
		t.Woken(lockertrace.Wake{Reason: reason, Slept: time.Since(since)})
	}
}
