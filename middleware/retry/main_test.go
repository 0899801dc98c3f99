package retry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a memory backend whose calls a test can make fail, and which records their times.
type store struct {
	backend.Backend

	mu     sync.Mutex
	hook   func(op string, n int, next func() error) error // n counts the calls of op, from 1
	calls  map[string][]time.Time
	tokens []string
}

func newStore() *store { return &store{Backend: memory.NewBackend(), calls: map[string][]time.Time{}} }

func (s *store) call(op string, next func() error) error {
	s.mu.Lock()
	s.calls[op] = append(s.calls[op], time.Now())
	n, hook := len(s.calls[op]), s.hook
	s.mu.Unlock()
	if hook == nil {
		return next()
	}
	return hook(op, n, next)
}

func (s *store) count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls[op])
}

func (s *store) on(hook func(op string, n int, next func() error) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
	clear(s.calls)
}

func (s *store) Acquire(ctx context.Context, req backend.Request) (g backend.Grant, err error) {
	s.mu.Lock()
	s.tokens = append(s.tokens, req.Token)
	s.mu.Unlock()
	err = s.call("acquire", func() (err error) {
		g, err = s.Backend.Acquire(ctx, req)
		return err
	})
	return g, err
}

func (s *store) Extend(ctx context.Context, req backend.Request) error {
	return s.call("extend", func() error { return s.Backend.Extend(ctx, req) })
}

func (s *store) Release(ctx context.Context, req backend.Request) error {
	return s.call("release", func() error { return s.Backend.Release(ctx, req) })
}

var errDown = fmt.Errorf("%w: the store is down", locker.ErrUnavailable)

// down fails every call.
func down(string, int, func() error) error { return errDown }

// failing fails the first n calls of each operation.
func failing(n int) func(string, int, func() error) error {
	return func(_ string, i int, next func() error) error {
		if i <= n {
			return errDown
		}
		return next()
	}
}

// bubble runs f in virtual time with a new store and a Client with the middleware.
func bubble(t *testing.T, opts []retry.Option, f func(t *testing.T, s *store, l locker.Locker)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(s)
		f(t, s, locker.Wrap(c, retry.New(opts...)))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func with(opts ...retry.Option) []retry.Option { return opts }

func mustLock(t *testing.T, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, l locker.Lease) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantErr checks that err matches all of want and none of the other sentinels, and that it is a *locker.Error.
func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, e := range []error{
		locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrNoQuorum,
		locker.ErrUnavailable,
		locker.ErrInvalid, locker.ErrForeignKey, locker.ErrClosed, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, e) != slices.Contains(want, e) {
			t.Errorf("error %q matches %q: %v, want %v", err, e, errors.Is(err, e), slices.Contains(want, e))
		}
	}
	if _, ok := err.(*locker.Error); !ok {
		t.Errorf("error %v is a %T", err, err)
	}
}

func wantText(t *testing.T, err error, text string) {
	t.Helper()
	if !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("error %q does not say %q", err, text)
	}
}
