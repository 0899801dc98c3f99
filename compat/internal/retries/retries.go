// Package retries acquires a lock with the retries of another library, and waits in the queue between them.
package retries

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
)

// Call is one acquisition. Its funcs are called by the caller of Acquire, apart from Wait, one at a time.
type Call struct {
	// Try makes one attempt.
	Try func(ctx context.Context) (locker.Lease, error)

	// Wait waits in the queue until ctx ends. It is called on another goroutine.
	Wait func(ctx context.Context) (locker.Lease, error)

	// Next returns how long the other library would sleep before its next attempt, or false if it would make none.
	Next func() (time.Duration, bool)

	// Again reports whether the other library would try again after err.
	Again func(err error) bool
}

const (
	// minPause keeps strategies that do not sleep from spinning.
	minPause = time.Millisecond

	// known is for how long it counts that a holder of this library has the lock. Between two of them, on a Redlock or
	// when a lock expires, a program that has not moved may have come in.
	known = time.Second
)

type outcome struct {
	lease locker.Lease
	err   error
}

// Acquire makes attempts when the other library would make them, and waits in the queue meanwhile. So it gets the lock
// at once when a holder that uses this library releases it, and no later than with the other library when a program
// that has not moved does, whose release tells no waiter. Behind a holder of this library, whose release grants the
// lock to a waiter in the queue, it makes an attempt once a second, and the last one.
//
// The error is that of the last contact. If ctx has ended, it need not match ctx's error.
func (c Call) Acquire(ctx context.Context) (locker.Lease, error) {
	waiting, leave := context.WithCancel(ctx)
	defer leave()
	queue, queued := make(chan outcome, 1), false
	asked := time.Now()
	last, old := c.try(ctx), false // old: the call has slept since
	for last.err != nil && c.Again(last.err) && ctx.Err() == nil {
		pause, more := c.Next()
		if !more {
			if old {
				last = c.try(ctx)
			}
			break
		}
		if !queued && errors.Is(last.err, locker.ErrHeld) {
			queued = true
			go func() {
				lease, err := c.Wait(waiting)
				queue <- outcome{lease, err}
			}()
		}
		select {
		case last = <-queue:
			queued, old = false, false
			continue
		case <-time.After(max(pause, minPause)):
		case <-ctx.Done():
			continue
		}
		if old = queued && handsOver(last.err) && time.Since(asked) < known; !old {
			asked = time.Now()
			last = c.try(ctx)
		}
	}
	if queued {
		leave()
		// If both have a lease, that of the attempt has expired since.
		if late := <-queue; late.err == nil {
			return late.lease, nil
		}
	}
	return last.lease, last.err
}

func (c Call) try(ctx context.Context) outcome {
	lease, err := c.Try(ctx)
	return outcome{lease, err}
}

// handsOver reports whether the release of the holder that err tells of grants the lock to a waiter. A holder without a
// label may use another library.
func handsOver(err error) bool {
	var held *locker.HeldError
	return errors.As(err, &held) && held.Label != ""
}
