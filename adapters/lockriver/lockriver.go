package lockriver

import (
	"context"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/postpone"
)

// Middleware is a rivertype.WorkerMiddleware that holds a lock while a job is worked. Create one with [New]. It belongs
// to river.Config.Middleware, or to what the method Middleware of a worker returns. Put it behind middleware that
// should see all errors, such as for metrics: a job that was snoozed matches locker.ErrHeld, locker.ErrUnavailable or
// locker.ErrDraining there.
type Middleware struct {
	river.MiddlewareDefaults

	locker locker.Locker
	key    func(job *rivertype.JobRow) string
	snooze time.Duration
}

// Option changes a [Middleware].
type Option func(*Middleware)

// Snooze sets for how long a job is snoozed if its key is locked or the store of the locks is unavailable. Up to half
// of d is added at random. Without it, the time is what the store says of the rest of the lock, but at least a second,
// and 5 s if it says nothing. Use it if jobs are much shorter than the TTL of the locks.
//
// River works a job that was snoozed for less than five seconds when a client of the fleet next looks for jobs, each
// once per Config.FetchPollInterval.
func Snooze(d time.Duration) Option { return func(m *Middleware) { m.snooze = d } }

// New returns a Middleware that acquires locks from l. key returns the name of the lock that a job needs, or an empty
// string if it needs none. For arguments that cannot be read, return a name that such jobs share, and not an empty one.
func New(l locker.Locker, key func(job *rivertype.JobRow) string, opts ...Option) *Middleware {
	m := &Middleware{locker: l, key: key}
	for _, opt := range opts {
		opt(m)
	}
	return m
}

// Work implements rivertype.WorkerMiddleware.
func (m *Middleware) Work(ctx context.Context, job *rivertype.JobRow, doInner func(ctx context.Context) error) error {
	err := postpone.Do(ctx, m.locker, m.key(job), m.snooze, doInner)
	if off, ok := err.(*postpone.Error); ok { //nolint:errorlint // one that is wrapped is that of another middleware
		return fmt.Errorf("lockriver: %w (%w)", off, river.JobSnooze(off.After))
	}
	return err
}
