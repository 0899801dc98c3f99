package postpone_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/postpone"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "customer:7"

var errJob = errors.New("the job has failed")

// world is a store in virtual time, with two processes that use it.
type world struct {
	*testing.T
	store      *lockertest.Store
	one, other *locker.Client
}

// in runs f in virtual time.
func in(t *testing.T, f func(w *world)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		store := lockertest.NewStore()
		w := &world{t, store, locker.NewClient(store), locker.NewClient(store)}
		defer w.one.Close()
		defer w.other.Close()
		f(w)
	})
}

// do calls Do in the first process, and says whether the job was called.
func (w *world) do(ctx context.Context, pause time.Duration, job func(context.Context) error) (called bool, err error) {
	err = postpone.Do(ctx, w.one, key, pause, func(ctx context.Context) error {
		called = true
		return job(ctx)
	})
	return called, err
}

// free fails the test unless the other process can have the lock.
func (w *world) free() {
	w.Helper()
	lease, err := w.other.TryLock(context.WithoutCancel(w.Context()), key)
	if err != nil {
		w.Fatalf("the lock is not free: %v", err)
	}
	_ = lease.Unlock(context.Background())
}

// putOff fails the test unless err puts a job off because of why, for least to most.
func (w *world) putOff(err error, why error, least, most time.Duration) {
	w.Helper()
	off := (*postpone.Error)(nil)
	if !errors.As(err, &off) || !errors.Is(err, why) || off.After < least || off.After > most {
		w.Errorf("%v; want to be put off for %v to %v because of: %v", err, least, most, why)
	}
}

func succeed(context.Context) error { return nil }

func TestAJobHasTheLockWhileItRuns(t *testing.T) {
	in(t, func(w *world) {
		called, err := w.do(w.Context(), 0, func(context.Context) error {
			if _, err := w.other.TryLock(w.Context(), key); !errors.Is(err, locker.ErrHeld) {
				w.Errorf("the lock is not held: %v", err)
			}
			return errJob
		})
		if !called || err != errJob {
			w.Error(called, err)
		}
		w.free()
	})
}

func TestAJobWithoutAKeyNeedsNoLock(t *testing.T) {
	in(t, func(w *world) {
		w.store.Down()
		if err := postpone.Do(w.Context(), w.one, "", 0, succeed); err != nil {
			w.Error(err)
		}
	})
}

func TestAHeldLockPutsTheJobOff(t *testing.T) {
	in(t, func(w *world) {
		if _, err := w.other.TryLock(w.Context(), key, locker.TTL(8*time.Second)); err != nil {
			w.Fatal(err)
		}
		called, err := w.do(w.Context(), 0, succeed)
		w.putOff(err, locker.ErrHeld, 7*time.Second, 12*time.Second)
		if called || !strings.HasPrefix(err.Error(), "put off for ") || !strings.Contains(err.Error(), ": held by ") {
			w.Error(called, err)
		}
		_, err = w.do(w.Context(), 20*time.Second, succeed)
		w.putOff(err, locker.ErrHeld, 20*time.Second, 30*time.Second)
	})
}

// A queue must not spin because a lock has nearly ended.
func TestAJobIsPutOffForASecondAtLeast(t *testing.T) {
	in(t, func(w *world) {
		if _, err := w.other.TryLock(w.Context(), key, locker.TTL(50*time.Millisecond)); err != nil {
			w.Fatal(err)
		}
		_, err := w.do(w.Context(), 0, succeed)
		w.putOff(err, locker.ErrHeld, time.Second, 1500*time.Millisecond)
	})
}

// Jobs that were put off together do not come back together.
func TestTimesDiffer(t *testing.T) {
	in(t, func(w *world) {
		w.store.Down()
		times := map[time.Duration]bool{}
		for range 10 {
			_, err := w.do(w.Context(), 0, succeed)
			w.putOff(err, locker.ErrUnavailable, 5*time.Second, 7500*time.Millisecond)
			if off := (*postpone.Error)(nil); errors.As(err, &off) {
				times[off.After] = true
			}
		}
		if len(times) < 2 {
			w.Errorf("ten jobs were put off for %v", times)
		}
	})
}

func TestAnOutagePutsTheJobOff(t *testing.T) {
	in(t, func(w *world) {
		log := logs(w.T) // queues say nothing
		w.store.Down()
		called, err := w.do(w.Context(), time.Second, succeed)
		w.putOff(err, locker.ErrUnavailable, time.Second, 1500*time.Millisecond)
		if called {
			w.Error("the job was called without the lock")
		}
		w.store.Up()
		if called, err := w.do(w.Context(), 0, succeed); !called || err != nil {
			w.Error(called, err)
		}
		if got := log.String(); strings.Count(got, "a job cannot have its lock") != 1 || !strings.Contains(got, key) {
			w.Errorf("logged %q", got)
		}
	})
}

// logs returns what is logged from now until the test ends.
func logs(t *testing.T) *strings.Builder {
	var text strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &text
}

// What does not pass by itself is an error of the job, so that somebody learns of it.
func TestALastingErrorDoesNotPutTheJobOff(t *testing.T) {
	in(t, func(w *world) {
		_ = w.one.Close()
		called, err := w.do(w.Context(), 0, succeed)
		if called || !errors.Is(err, locker.ErrClosed) || errors.As(err, new(*postpone.Error)) {
			w.Error(called, err)
		}
	})
}

func TestALossEndsTheJobAndFailsIt(t *testing.T) {
	in(t, func(w *world) {
		go func() { _ = w.store.Lose(w.Context(), key) }()
		called, err := w.do(w.Context(), 0, func(ctx context.Context) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, locker.ErrLost) {
				w.Errorf("the context has ended because of %v", cause)
			}
			return errJob
		})
		if !called || !errors.Is(err, locker.ErrLost) || !errors.Is(err, errJob) || errors.As(err, new(*postpone.Error)) {
			w.Error(called, err)
		}
	})
}

// A job that has ignored the loss may have run beside another one.
func TestALossFailsAJobThatHasSucceeded(t *testing.T) {
	in(t, func(w *world) {
		_, err := w.do(w.Context(), 0, func(ctx context.Context) error {
			_ = w.store.Lose(ctx, key)
			return nil
		})
		if !errors.Is(err, locker.ErrLost) {
			w.Error(err)
		}
	})
}

// The outcome of an unlock says nothing about the job, and must not repeat it.
func TestAnUnlockWithoutAnAnswerIsNoError(t *testing.T) {
	in(t, func(w *world) {
		for _, want := range []error{nil, errJob} {
			_, err := w.do(w.Context(), 0, func(context.Context) error {
				w.store.Down()
				return want
			})
			if err != want {
				w.Errorf("%v, want %v", err, want)
			}
			w.store.Up()
			w.free()
		}
	})
}

func TestACancelledJobReturnsTheLock(t *testing.T) {
	in(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		_, err := w.do(ctx, 0, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, locker.ErrLost) {
			w.Error(err)
		}
		w.free()
	})
}

// The queue knows what to do with a job that it has cancelled.
func TestAnEndedContextDoesNotPutTheJobOff(t *testing.T) {
	in(t, func(w *world) {
		w.store.Delay(time.Hour)
		for _, limit := range []time.Duration{0, 3 * time.Second} {
			ctx, cancel := context.WithTimeout(w.Context(), limit)
			called, err := w.do(ctx, 0, succeed)
			cancel()
			if called || !errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*postpone.Error)) {
				w.Error(called, err)
			}
		}
	})
}

func TestAPanicReturnsTheLock(t *testing.T) {
	in(t, func(w *world) {
		func() {
			defer func() { _ = recover() }()
			_, _ = w.do(w.Context(), 0, func(context.Context) error { panic("the job") })
		}()
		w.free()
	})
}

// A program that drains leaves its jobs to others, and counts no failure.
func TestADrainPutsTheJobOff(t *testing.T) {
	in(t, func(w *world) {
		held, err := w.one.TryLock(w.Context(), key)
		if err != nil {
			w.Fatal(err)
		}
		ended, end := context.WithCancel(w.Context())
		end()
		w.one.Drain(ended)
		called, err := w.do(w.Context(), 0, succeed)
		w.putOff(err, locker.ErrDraining, 5*time.Second, 7500*time.Millisecond)
		if called {
			w.Error("the job was called")
		}
		if err := held.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
	})
}
