package ending_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/testing/virtual"
)

// lateContext is a context whose timer fires late, when another context ends.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// A context whose deadline has passed is waited for, but only for a second: it may not observe its deadline.
func TestTheTimerOfAContextMayBeLate(t *testing.T) {
	for _, tt := range []struct {
		name        string
		left, late  time.Duration
		waits       time.Duration
		end         error
		neverEnding bool // it has no Done
	}{
		{name: "before the deadline", left: time.Millisecond},
		{name: "at the deadline", end: context.DeadlineExceeded},
		{name: "late", late: time.Millisecond, waits: time.Millisecond, end: context.DeadlineExceeded},
		{name: "far too late", late: time.Minute, waits: time.Second},
		{name: "it never ends", neverEnding: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				parent := context.Background()
				if !tt.neverEnding {
					var cancel context.CancelFunc
					parent, cancel = context.WithTimeout(parent, tt.left+tt.late)
					defer cancel()
				}
				start := time.Now()
				err := ending.Of(lateContext{parent, start.Add(tt.left)})
				if took := time.Since(start); !errors.Is(err, tt.end) || took != tt.waits {
					t.Errorf("%v after %v, want %v after %v", err, took, tt.end, tt.waits)
				}
			})
		})
	}
}

func TestTheCauseIsNamedOnce(t *testing.T) {
	maintenance := errors.New("maintenance")
	for cause, want := range map[error]string{nil: "context canceled", maintenance: "context canceled (maintenance)"} {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		why := ending.Why(ctx, ending.Of(ctx))
		if why.Error() != want || !errors.Is(why, context.Canceled) || cause != nil && !errors.Is(why, cause) {
			t.Errorf("%v, want %v", why, want)
		}
	}
}
