package lockriver_test

import (
	"context"
	"errors"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockriver"
	"github.com/golocker/locker/lockertest"
)

// internal/testing/adapters/lockriver has the tests that need a store.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ rivertype.WorkerMiddleware = (*lockriver.Middleware)(nil)

// Only the errors that put a job off are snoozes. Middleware in front sees why.
func TestErrors(t *testing.T) {
	store := lockertest.NewStore()
	l := locker.NewClient(store)
	defer l.Close()
	lock := lockriver.New(l, func(job *rivertype.JobRow) string { return job.Kind })
	job := &rivertype.JobRow{Kind: "export"}
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	snooze := (*river.JobSnoozeError)(nil)

	if err := lock.Work(t.Context(), job, fails); err != failed {
		t.Error(err)
	}
	err := lock.Work(t.Context(), job, func(ctx context.Context) error {
		err := lock.Work(t.Context(), job, fails)
		if !errors.As(err, &snooze) || !errors.Is(err, locker.ErrHeld) || snooze.Duration <= 0 {
			t.Error(err)
		}
		_ = store.Lose(ctx, "export")
		return nil
	})
	if !errors.Is(err, locker.ErrLost) || errors.As(err, &snooze) {
		t.Error(err)
	}
	store.Down()
	if err := lock.Work(t.Context(), job, fails); !errors.As(err, &snooze) || !errors.Is(err, locker.ErrUnavailable) {
		t.Error(err)
	}
	if !lock.IsMiddleware() || lock.Work(t.Context(), &rivertype.JobRow{}, fails) != failed {
		t.Error("a job without a key is not worked")
	}
}
