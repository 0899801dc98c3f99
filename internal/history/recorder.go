package history

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
)

// Client returns l with all that it does recorded as client id's.
func (h *History) Client(id int, l locker.Locker) locker.Locker { return &recorder{h, id, l} }

type recorder struct {
	history *History
	id      int
	next    locker.Locker
}

// Unwrap is for [locker.As].
func (r *recorder) Unwrap() locker.Locker { return r.next }

func (r *recorder) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.record(ctx, Lock, r.next.Lock, key, opts)
}

func (r *recorder) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.record(ctx, TryLock, r.next.TryLock, key, opts)
}

func (r *recorder) record(ctx context.Context, op Op, lock func(context.Context, string, ...locker.Option) (locker.Lease, error),
	key string, opts []locker.Option,
) (locker.Lease, error) {
	renewed := make(chan struct{}, 1)
	traced := locker.WithTrace(ctx, &locker.Trace{Renewed: func(r locker.Renewal) {
		if r.Err == nil {
			select {
			case renewed <- struct{}{}:
			default:
			}
		}
	}})
	e := Event{Client: r.id, Op: op, Key: key, Call: r.history.Now()}
	if d, ok := ctx.Deadline(); ok {
		e.Deadline = r.history.at(d)
	}
	l, err := lock(traced, key, opts...)
	e.Return, e.Outcome = r.history.Now(), outcome(err)
	if err != nil {
		r.history.Add(e)
		return nil, err
	}
	e.Owner, e.Fence, e.Until = l.Token(), l.Fence(), r.history.at(l.Until())
	r.history.Add(e)
	rec := &lease{l, r}
	r.history.watch.Go(func() { rec.watch(renewed) })
	return rec, nil
}

// at translates a time of the client's monotonic clock.
func (h *History) at(t time.Time) time.Duration { return t.Sub(h.start) }

type lease struct {
	locker.Lease
	by *recorder
}

// watch looks at the lease after each renewal: hooks must not.
func (l *lease) watch(renewed <-chan struct{}) {
	for {
		select {
		case <-renewed:
			l.add(Until, l.by.history.Now(), nil)
		case <-l.Done():
			l.add(Done, l.by.history.Now(), l.Err())
			return
		}
	}
}

func (l *lease) add(op Op, call time.Duration, err error) {
	h := l.by.history
	e := Event{Client: l.by.id, Op: op, Key: l.Key(), Owner: l.Token(), Fence: l.Fence(), Call: call, Return: h.Now(), Outcome: outcome(err)}
	e.Until = h.at(l.Until())
	h.Add(e)
}

func (l *lease) Extend(ctx context.Context) error {
	call := l.by.history.Now()
	err := l.Lease.Extend(ctx)
	l.add(Extend, call, err)
	return err
}

func (l *lease) Unlock(ctx context.Context) error {
	call := l.by.history.Now()
	err := l.Lease.Unlock(ctx)
	l.add(Unlock, call, err)
	return err
}

func outcome(err error) Outcome {
	var lost *locker.LostError
	switch {
	case err == nil:
		return OK
	case errors.Is(err, locker.ErrNotHeld):
		return NotHeld
	case errors.As(err, &lost) && lost.Reason == locker.LostTakenOver:
		return Taken
	case errors.Is(err, locker.ErrLost):
		return Lost
	case errors.Is(err, locker.ErrUnlocked):
		return Unlocked
	case errors.Is(err, locker.ErrHeld):
		return Held
	}
	return Unknown
}
