package logging_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/logging"
)

// stepping is a store that acquires several locks in one step.
type stepping struct{ *store }

func (s stepping) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) (gs []*backend.Grant, err error) {
	err = s.call(reqs[0], func() (err error) {
		gs, err = s.Backend.(backend.ManyAcquirer).AcquireMany(ctx, reqs, c)
		return err
	})
	return gs, err
}

// stealing is a store whose next step is followed by the loss of its last lock.
type stealing struct{ stepping }

func (s stealing) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	gs, err := s.stepping.AcquireMany(ctx, reqs, c)
	if err == nil {
		err = s.Backend.Release(ctx, reqs[len(reqs)-1])
	}
	return gs, err
}

// stepped runs f in virtual time with a Client of a store that wrap changes.
func stepped(
	t *testing.T, level slog.Level, wrap func(stepping) backend.Backend,
	f func(t *testing.T, j *journal, s *store, l locker.Locker),
) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		var j journal
		s := &store{Backend: memory.NewBackend()}
		c := locker.NewClient(wrap(stepping{s}))
		f(t, &j, s, locker.Wrap(c, logging.New(j.logger(level))))
		_ = c.Close()
	})
}

// A step for several locks is one record. It names the key of a lock that is held.
func TestStepIsOneRecord(t *testing.T) {
	plain := func(s stepping) backend.Backend { return s }
	stepped(t, slog.LevelDebug, plain, func(t *testing.T, j *journal, s *store, l locker.Locker) {
		lease, err := locker.LockAll(t.Context(), l, []string{"b", "a"})
		if err != nil {
			t.Fatal(err)
		}
		j.wantNews(t, "DEBUG locks acquired keys=2 took=0")
		if _, err := locker.TryLockAll(t.Context(), l, []string{"b", "c"}); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		j.wantNews(t, "DEBUG locks not acquired err=* key=b keys=2 took=0")
		mustUnlock(t, lease)
		if n := len(j.news(t)); n != 2 {
			t.Errorf("%d records of the release of two locks", n)
		}
		s.fail(errDown)
		if _, err := locker.TryLockAll(t.Context(), l, []string{"a", "b"}); !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
		j.wantNews(t, "WARN lock store unavailable err=lock store unavailable: connection refused",
			"DEBUG locks not acquired err=lock store unavailable: connection refused keys=2 took=0")
	})
}

// Locks that cannot be acquired in one step are logged by themselves, and the step is not.
func TestStepThatIsNotPossible(t *testing.T) {
	hidden := func(s stepping) backend.Backend { return s.store }
	stepped(t, slog.LevelDebug, hidden, func(t *testing.T, j *journal, _ *store, l locker.Locker) {
		lease, err := locker.LockAll(t.Context(), l, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		j.wantNews(t, "DEBUG lock acquired fence=1 key=a took=0", "DEBUG lock acquired fence=2 key=b took=0")
		mustUnlock(t, lease)
	})
}

// The loss of one of the locks is logged once, with its key and token, and the others are renewed.
func TestLossOfOneOfSeveralLocks(t *testing.T) {
	steals := func(s stepping) backend.Backend { return stealing{s} }
	stepped(t, slog.LevelInfo, steals, func(t *testing.T, j *journal, _ *store, l locker.Locker) {
		lease, err := locker.LockAll(t.Context(), l, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		synctest.Wait()
		j.wantNews(t, "WARN lock lost fence=2 held=* key=b reason=gone")
		if err := lease.Unlock(t.Context()); !errors.Is(err, locker.ErrNotHeld) {
			t.Error(err)
		}
		j.wantNews(t)
	})
}
