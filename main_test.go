package locker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a memory backend whose calls a test can fail, delay and count.
type store struct {
	backend.Backend

	mu     sync.Mutex
	calls  map[string]int
	hooks  map[string]hook // by operation
	tokens []string        // of Acquire
	closed bool
}

// hook replaces a call of the backend. next makes that call.
type hook func(ctx context.Context, next func() error) error

func newStore() *store {
	return &store{Backend: memory.NewBackend(), calls: map[string]int{}, hooks: map[string]hook{}}
}

// on sets the hook of op. nil removes it.
func (s *store) on(op string, h hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[op] = h
}

func (s *store) count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

func (s *store) call(ctx context.Context, op string, next func() error) error {
	s.mu.Lock()
	s.calls[op]++
	h := s.hooks[op]
	s.mu.Unlock()
	if h == nil {
		return next()
	}
	return h(ctx, next)
}

func (s *store) Acquire(ctx context.Context, req backend.Request) (g backend.Grant, err error) {
	s.mu.Lock()
	s.tokens = append(s.tokens, req.Token)
	s.mu.Unlock()
	err = s.call(ctx, "acquire", func() (err error) {
		g, err = s.Backend.Acquire(ctx, req)
		return err
	})
	return g, err
}

func (s *store) Extend(ctx context.Context, req backend.Request) error {
	return s.call(ctx, "extend", func() error { return s.Backend.Extend(ctx, req) })
}

func (s *store) Release(ctx context.Context, req backend.Request) error {
	return s.call(ctx, "release", func() error { return s.Backend.Release(ctx, req) })
}

func (s *store) Close() error { s.closed = true; return nil }

// steal makes another caller the owner of the lock of l. If ttl is 0, the lock has no owner afterwards.
func (s *store) steal(t *testing.T, l locker.Lease, ttl time.Duration) {
	t.Helper()
	if err := s.Backend.Release(t.Context(), backend.Request{Key: l.Key(), Token: l.Token()}); err != nil {
		t.Fatal(err)
	}
	if ttl > 0 {
		if _, err := s.Backend.Acquire(t.Context(),
			backend.Request{Key: l.Key(), Token: "thief", TTL: ttl}); err != nil {
			t.Fatal(err)
		}
	}
}

// hang waits for the end of the context, like a store that does not answer.
func hang(ctx context.Context, _ func() error) error {
	<-ctx.Done()
	return locker.ErrUnavailable
}

func unavailable(context.Context, func() error) error { return locker.ErrUnavailable }

// bubble runs f in virtual time with a Client of a fresh store.
func bubble(t *testing.T, f func(t *testing.T, s *store, c *locker.Client)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(s)
		f(t, s, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func mustLock(t *testing.T, l locker.Locker, key string, opts ...locker.Option) locker.Lease {
	t.Helper()
	lease, err := l.TryLock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// wantErr checks that err matches all of want and none of the other sentinels.
func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	all := []error{
		locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrNoQuorum,
		locker.ErrUnavailable, locker.ErrReleaseUnknown,
		locker.ErrInvalid, locker.ErrForeignKey, locker.ErrClosed, context.Canceled, context.DeadlineExceeded,
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error %v does not match %v", err, w)
		}
	}
	for _, e := range all {
		matches := errors.Is(err, e)
		for _, w := range want {
			matches = matches && w != e
		}
		if matches {
			t.Errorf("error %v must not match %v", err, e)
		}
	}
}

// isDone reports whether the lease's Done is closed now.
func isDone(l locker.Lease) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}
