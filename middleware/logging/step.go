package logging

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// TryLockMany implements [locker.ManyLocker]. The call is logged once, and its leases each.
func (l *logged) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	if !l.enabled(ctx, slog.LevelWarn) {
		return locker.TryLockMany(ctx, l.next, m, opts...)
	}
	s := newStep(ctx, l, m.Keys)
	leases, err := locker.TryLockMany(lockertrace.With(ctx, &s.trace), l.next, m, opts...)
	return s.acquired(leases, err)
}

// step is one call of TryLockMany.
type step struct {
	trace lockertrace.Trace
	l     *logged
	ctx   context.Context
	start time.Time
	holds []*hold // of the leases, in the order of the keys
}

func newStep(ctx context.Context, l *logged, keys []string) *step {
	s := &step{l: l, ctx: ctx, start: time.Now(), holds: make([]*hold, len(keys))}
	for i, key := range keys {
		s.holds[i] = newHold(ctx, l, key)
	}
	s.trace = lockertrace.Trace{
		Voted:     l.votes.Voted,
		Attempted: func(a lockertrace.Attempt) { l.storeSaid(ctx, a.Err) },
		LeaseOf:   func(i int) *lockertrace.Trace { return &s.holds[i].trace },
	}
	return s
}

// acquired records the end of the call, and returns its results.
func (s *step) acquired(leases []locker.Lease, err error) ([]locker.Lease, error) {
	if errors.Is(err, errors.ErrUnsupported) { // the locks are acquired one after the other, and logged then
		return nil, err
	}
	if err == nil || outcomeOf(err) == down {
		s.l.storeSaid(s.ctx, err)
	}
	if err != nil {
		s.debug("locks not acquired", s.about(err), errAttr(err))
		return nil, err
	}
	s.debug("locks acquired")
	for i, lease := range leases {
		if lease == nil {
			continue
		}
		s.holds[i].has(lease)
		leases[i] = s.holds[i]
	}
	return leases, nil
}

func (s *step) debug(message string, attrs ...slog.Attr) {
	if s.l.enabled(s.ctx, slog.LevelDebug) {
		attrs = append(attrs, slog.Int("keys", len(s.holds)), slog.Duration("took", time.Since(s.start)))
		s.l.log(s.ctx, slog.LevelDebug, message, attrs...)
	}
}

// about returns the attribute for the key that err is about. It is empty if err is about all keys.
func (s *step) about(err error) slog.Attr {
	var e *locker.Error
	if errors.As(err, &e) {
		for _, h := range s.holds {
			if h.key == e.Key {
				return h.keyAttr()
			}
		}
	}
	return slog.Attr{}
}
