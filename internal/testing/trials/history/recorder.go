package history

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// Client returns a Locker that calls l and records all calls as those of the client id.
func (h *History) Client(id int, l locker.Locker) locker.Locker { return &recorder{h, id, l} }

type recorder struct {
	history *History
	id      int
	next    locker.Locker
}

// Unwrap lets [locker.As] find the optional interfaces of l.
func (r *recorder) Unwrap() locker.Locker { return r.next }

func (r *recorder) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.record(ctx, Lock, r.next.Lock, key, opts)
}

func (r *recorder) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return r.record(ctx, TryLock, r.next.TryLock, key, opts)
}

func (r *recorder) record(ctx context.Context, op Op,
	lock func(context.Context, string, ...locker.Option) (locker.Lease, error),
	key string, opts []locker.Option,
) (locker.Lease, error) {
	renewed := make(chan struct{}, 1)
	traced := lockertrace.With(ctx, &lockertrace.Trace{Renewed: func(r lockertrace.Renewal) {
		if r.Err == nil {
			select {
			case renewed <- struct{}{}:
			default:
			}
		}
	}})
	e := Event{Client: r.id, Op: op, Key: key, Call: r.history.Now()}
	e.Deadline = r.history.deadline(ctx)
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

// at returns the time t since the history began.
func (h *History) at(t time.Time) time.Duration { return t.Sub(h.start) }

// deadline returns the deadline of ctx since the history began. It is 0 if ctx has none.
func (h *History) deadline(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return h.at(d)
	}
	return 0
}

type lease struct {
	locker.Lease
	by *recorder
}

// watch records the end of the lease after each renewal. Hooks must not call the lease themselves.
func (l *lease) watch(renewed <-chan struct{}) {
	for {
		select {
		case <-renewed:
			l.add(Event{Op: Until, Call: l.by.history.Now()}, nil)
		case <-l.Done():
			l.add(Event{Op: Done, Call: l.by.history.Now()}, l.Err())
			return
		}
	}
}

func (l *lease) add(e Event, err error) {
	h := l.by.history
	e.Return, e.Outcome, e.Client, e.Key, e.Owner, e.Fence = h.Now(), outcome(err), l.by.id, l.Key(), l.Token(),
		l.Fence()
	e.Until = h.at(l.Until())
	h.Add(e)
}

func (l *lease) Extend(ctx context.Context, opts ...locker.Option) error {
	e := Event{Op: Extend, Call: l.by.history.Now(), Deadline: l.by.history.deadline(ctx)}
	err := l.Lease.Extend(ctx, opts...)
	l.add(e, err)
	return err
}

// Verify is found by [locker.Verify].
func (l *lease) Verify(ctx context.Context) error {
	e := Event{Op: Verify, Call: l.by.history.Now(), Deadline: l.by.history.deadline(ctx)}
	err := locker.Verify(ctx, l.Lease)
	l.add(e, err)
	return err
}

// Bind is found by [locker.Bind]. It proves what Verify proves.
func (l *lease) Bind(ctx context.Context, to any) error {
	e := Event{Op: Verify, Call: l.by.history.Now(), Deadline: l.by.history.deadline(ctx)}
	err := locker.Bind(ctx, l.Lease, to)
	l.add(e, err)
	return err
}

func (l *lease) Unlock(ctx context.Context) error {
	e := Event{Op: Unlock, Call: l.by.history.Now(), Deadline: l.by.history.deadline(ctx)}
	err := l.Lease.Unlock(ctx)
	l.add(e, err)
	return err
}

// taken has the reasons of a loss that the store has reported.
var taken = []locker.LostReason{locker.LostGone, locker.LostTakenOver, locker.LostSuperseded}

func outcome(err error) Outcome {
	var lost *locker.LostError
	switch {
	case err == nil:
		return OK
	case errors.Is(err, locker.ErrNotHeld):
		return NotHeld
	case errors.As(err, &lost) && slices.Contains(taken, lost.Reason):
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
