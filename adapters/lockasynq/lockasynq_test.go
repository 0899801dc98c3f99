package lockasynq_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockasynq"
	"github.com/golocker/locker/lockertest"
)

// internal/testing/adapters/lockasynq has the tests that need a store.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestErrors(t *testing.T) {
	store := lockertest.NewStore()
	l := locker.NewClient(store)
	defer l.Close()
	failed := errors.New("failed")
	var inside func(ctx context.Context) error
	handler := lockasynq.Middleware(l, (*asynq.Task).Type)(asynq.HandlerFunc(
		func(ctx context.Context, _ *asynq.Task) error { return inside(ctx) }))
	process := func(f func(ctx context.Context) error) error {
		inside = f
		return handler.ProcessTask(t.Context(), asynq.NewTask("export", nil))
	}
	fails := func(context.Context) error { return failed }
	own := asynq.Config{
		IsFailure:      func(err error) bool { return !errors.Is(err, context.Canceled) },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	}
	counts := func(err error, want bool) {
		t.Helper()
		for _, c := range []asynq.Config{lockasynq.Config(own), lockasynq.Config(asynq.Config{})} {
			if c.IsFailure(err) != want {
				t.Errorf("a failure: %v; want %v; %v", !want, want, err)
			}
			if d := c.RetryDelayFunc(0, err, nil); want != (d > 15*time.Second) {
				t.Errorf("%v: tried again in %v", err, d)
			}
		}
	}

	if err := process(fails); err != failed {
		t.Error(err)
	}
	counts(failed, true)
	if lockasynq.Config(own).IsFailure(context.Canceled) || lockasynq.Config(asynq.Config{}).IsFailure(nil) {
		t.Error("the program's own IsFailure is not asked")
	}
	err := process(func(ctx context.Context) error {
		err := process(fails)
		if !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		counts(err, false)
		_ = store.Lose(ctx, "export")
		return nil
	})
	if !errors.Is(err, locker.ErrLost) {
		t.Error(err)
	}
	counts(err, true)
	store.Down()
	if err = process(fails); !errors.Is(err, locker.ErrUnavailable) {
		t.Error(err)
	}
	counts(err, false)
}
