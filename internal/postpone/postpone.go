// Package postpone calls the jobs of a queue under a lock. A job whose lock is not to be had is put off, and does not
// wait, because it would keep a worker of the queue from other jobs.
package postpone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
)

const (
	// shortest bounds from below what the store says of the rest of a lock, so that a queue does not spin.
	shortest = time.Second

	// usual applies if the store does not say for how long the lock is held, or is unavailable.
	usual = 5 * time.Second
)

// Error says that a job was not called, and when to try it again.
type Error struct {
	Err   error         // of the Locker; it matches locker.ErrHeld, locker.ErrUnavailable or locker.ErrDraining
	After time.Duration // from now
}

// Error returns a text such as "put off for 7.3s: locker: trylock "k": held by web-7:4211 for 5.1 s unless renewed".
func (e *Error) Error() string {
	return fmt.Sprintf("put off for %v: %v", e.After.Round(100*time.Millisecond), e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Do calls job while it holds the lock of key, or without a lock if key is empty. The context of job ends when the lock
// is lost. Do returns:
//
//   - an [*Error], if the lock is held, the store is unavailable, or the Client drains, so that another process has to
//     do the job. job was not called. It is to be tried again after
//     pause, or if pause is not positive, when the lock ends unless its holder renews it. Up to half of that is added
//     at random, because jobs that were put off together would come back together. If the store is unavailable, a
//     warning is logged with slog.Default, because queues say nothing about jobs that are put off.
//   - another error of the Locker, if trying again does not help or ctx has ended. job was not called.
//   - the error of job, joined with one that matches locker.ErrLost if the lock was lost while job ran.
//
// An unlock whose outcome is unknown is no error, because it is no reason to call job once more. The lock ends with its
// TTL then.
func Do(
	ctx context.Context, l locker.Locker, key string, pause time.Duration, job func(ctx context.Context) error,
) error {
	if key == "" {
		return job(ctx)
	}
	var called bool
	var done error
	err := locker.TryDo(ctx, l, key, func(ctx context.Context) error {
		called = true
		done = job(ctx)
		return done
	})
	switch {
	case called && !errors.Is(err, locker.ErrLost):
		return done
	case called, ctx.Err() != nil:
		return err
	case errors.Is(err, locker.ErrHeld), errors.Is(err, locker.ErrUnavailable), errors.Is(err, locker.ErrDraining):
		off := &Error{err, after(err, pause)}
		if errors.Is(err, locker.ErrUnavailable) {
			slog.Default().WarnContext(ctx, "a job cannot have its lock", "error", off)
		}
		return off
	}
	return err
}

// after returns for how long a job is put off because of err.
func after(err error, pause time.Duration) time.Duration {
	if pause <= 0 {
		pause = usual
		if held := (*locker.HeldError)(nil); errors.As(err, &held) && held.Remaining > 0 {
			pause = max(shortest, held.Remaining)
		}
	}
	return pause + rand.N(pause/2+1)
}
