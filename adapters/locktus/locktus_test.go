package locktus_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/locktus"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertest"
)

const id = "24e533e02ec3bc40c387f1a0e460e216"

// world is a store of locks, and two servers.
type world struct {
	*testing.T
	store    *lockertest.Store
	a, b     handler.Locker
	requests atomic.Int64 // to unlock
}

func inVirtualTime(t *testing.T, f func(w *world)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		w := &world{T: t, store: lockertest.NewStore()}
		w.a, w.b = locktus.New(w.client()), locktus.New(w.client())
		f(w)
	})
}

func (w *world) client() *locker.Client {
	c := locker.NewClient(w.store)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// lock begins to lock the upload on a server.
func (w *world) lock(ctx context.Context, on handler.Locker) (handler.Lock, error) {
	l, err := on.NewLock(id)
	if err != nil {
		w.Error(err)
	}
	return l, l.Lock(ctx, func() { w.requests.Add(1) })
}

// mustLock locks the upload on a server.
func (w *world) mustLock(on handler.Locker) handler.Lock {
	w.Helper()
	l, err := w.lock(w.Context(), on)
	if err != nil {
		w.Fatal(err)
	}
	return l
}

// requested fails the test unless requestUnlock has been called n times.
func (w *world) requested(n int64) {
	w.Helper()
	synctest.Wait()
	if got := w.requests.Load(); got != n {
		w.Errorf("requestUnlock was called %d times, want %d", got, n)
	}
}

func TestTheHolderIsAskedToUnlock(t *testing.T) {
	for name, second := range map[string]func(w *world) handler.Locker{
		"on the same server":  func(w *world) handler.Locker { return w.a },
		"on the other server": func(w *world) handler.Locker { return w.b },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				first := w.mustLock(w.a)
				time.Sleep(time.Minute)
				w.requested(0)
				locked := make(chan handler.Lock)
				go func() { locked <- w.mustLock(second(w)) }()
				w.requested(1)
				time.Sleep(time.Minute)
				w.requested(1)
				if err := first.Unlock(); err != nil {
					t.Error(err)
				}
				if err := (<-locked).Unlock(); err != nil {
					t.Error(err)
				}
				w.requested(1)
			})
		})
	}
}

func TestALossInterruptsTheHolder(t *testing.T) {
	for name, lose := range map[string]func(w *world) error{
		"the lock is gone": func(w *world) error { return w.store.Lose(w.Context(), id) },
		"an outage": func(w *world) error {
			w.store.Down()
			time.Sleep(9 * time.Second)
			w.requested(0)
			time.Sleep(time.Second)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				l := w.mustLock(w.a)
				if err := lose(w); err != nil {
					t.Error(err)
				}
				w.requested(1)
				w.store.Up()
				_ = l.Unlock()
				w.requested(1)
			})
		})
	}
}

func TestUnlockInterruptsNobody(t *testing.T) {
	inVirtualTime(t, func(w *world) {
		if err := w.mustLock(w.a).Unlock(); err != nil {
			t.Error(err)
		}
		w.requested(0)
	})
}

// Errors are answers of tusd that say nothing of the store.
func TestErrors(t *testing.T) {
	timeout := func(w *world) context.Context {
		ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
		w.Cleanup(cancel)
		return ctx
	}
	for name, tt := range map[string]struct {
		before func(w *world) context.Context
		code   string
		status int
		is     error
	}{
		"held": {func(w *world) context.Context {
			w.mustLock(w.b)
			return timeout(w)
		}, "ERR_LOCK_TIMEOUT", http.StatusInternalServerError, locker.ErrHeld},
		"the client leaves": {func(w *world) context.Context {
			w.mustLock(w.b)
			ctx, cancel := context.WithCancel(w.Context())
			cancel()
			return ctx
		}, "ERR_LOCK_TIMEOUT", http.StatusInternalServerError, context.Canceled},
		"down": {func(w *world) context.Context {
			w.store.Down()
			return timeout(w)
		}, "ERR_LOCK_UNAVAILABLE", http.StatusServiceUnavailable, locker.ErrUnavailable},
		"silent": {func(w *world) context.Context {
			w.store.Delay(time.Hour)
			return timeout(w)
		}, "ERR_LOCK_UNAVAILABLE", http.StatusServiceUnavailable, locker.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *world) {
				log := logs(w.T)
				_, err := w.lock(tt.before(w), w.a)
				if logged := log.Len() > 0; logged != (tt.status == http.StatusServiceUnavailable) {
					t.Errorf("logged %q", log)
				}
				if !errors.Is(err, tt.is) {
					t.Errorf("%v does not match %v", err, tt.is)
				}
				var got handler.Error
				if !errors.As(err, &got) || got.ErrorCode != tt.code || got.HTTPResponse.StatusCode != tt.status {
					t.Fatalf("%v is answered with %q, %d", err, got.ErrorCode, got.HTTPResponse.StatusCode)
				}
				if strings.Contains(got.HTTPResponse.Body, "locker:") {
					t.Errorf("the answer says %s", got.HTTPResponse.Body)
				}
			})
		})
	}
}

// logs returns what is logged from now until the test ends.
func logs(t *testing.T) *strings.Builder {
	var text strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &text
}

func TestAClosedLockerIsUnavailable(t *testing.T) {
	c := locker.NewClient(lockertest.NewStore())
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	l, err := locktus.New(c).NewLock(id)
	if err != nil {
		t.Error(err)
	}
	var got handler.Error
	err = l.Lock(t.Context(), func() {})
	if !errors.As(err, &got) || got.ErrorCode != "ERR_LOCK_UNAVAILABLE" || !errors.Is(err, locker.ErrClosed) {
		t.Error(err)
	}
}
