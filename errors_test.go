package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// nodeError is an error of a backend, with something a caller may want.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }

// Whether the caller's context ended is decided from that context alone: clients that share a socket surface one caller's
// deadline as another caller's error.
func TestABackendCannotSayThatTheCallersContextEnded(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want error
	}{
		{"deadline", context.DeadlineExceeded, locker.ErrUnavailable},
		{"cancelled", &nodeError{"a", context.Canceled}, locker.ErrUnavailable},
		{"unavailable", fmt.Errorf("%w: %w", locker.ErrUnavailable, context.DeadlineExceeded), locker.ErrUnavailable},
		{"anything", &nodeError{"a", errors.New("strange")}, locker.ErrUnavailable},
		{"foreign", fmt.Errorf("%w: %w", locker.ErrForeignKey, context.Canceled), locker.ErrForeignKey},
		{"invalid", fmt.Errorf("%w: %w", locker.ErrInvalid, context.Canceled), locker.ErrInvalid},
		{"held", errors.Join(context.DeadlineExceeded, &locker.HeldError{Remaining: time.Second}), locker.ErrHeld},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, c *locker.Client) {
				fail := func(context.Context, func() error) error { return tt.err }
				l := mustLock(t, c, "k")
				s.on("acquire", fail)
				s.on("extend", fail)
				s.on("release", fail)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err := c.TryLock(ctx, "other")
				for op, err := range map[string]error{"trylock": err, "extend": l.Extend(ctx), "unlock": l.Unlock(ctx)} {
					wantErr(t, err, tt.want)
					if !strings.Contains(err.Error(), tt.err.Error()) {
						t.Errorf("%s: %q does not say what the backend said: %q", op, err, tt.err)
					}
					var node *nodeError
					if errors.As(tt.err, &node) && !errors.As(err, &node) {
						t.Errorf("%s: the type of the backend's error is lost", op)
					}
					var held *locker.HeldError
					if tt.want == locker.ErrHeld && (!errors.As(err, &held) || held.Remaining != time.Second) {
						t.Errorf("%s: the HeldError is lost", op)
					}
				}
			})
		})
	}
}

// lateContext is a context whose deadline has passed although its timer has not fired yet.
type lateContext struct{ context.Context }

func (c lateContext) Deadline() (time.Time, bool) { return time.Now().Add(-time.Nanosecond), true }

func TestADeadlineThatHasPassedCountsBeforeItsTimerFires(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k")
		ctx := lateContext{t.Context()}
		wantErr(t, l.Extend(ctx), context.DeadlineExceeded)
		_, err := c.TryLock(ctx, "other")
		wantErr(t, err, context.DeadlineExceeded)
		if n := s.count("extend") + s.count("acquire"); n != 1 {
			t.Errorf("%d requests were sent after the deadline", n-1)
		}
	})
}
