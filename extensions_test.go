package locker_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
)

// extensions is a backend that records the keys and the times of extensions.
type extensions struct {
	backend.Backend

	mu    sync.Mutex
	hook  func(ctx context.Context, req backend.Request, next func() error) error
	begun time.Time
	sent  []time.Duration // since begun
	keys  []string
	now   map[string]int // in flight, by key
	most  map[string]int
	peak  int
	total int
}

func watched(s *store) *extensions {
	return &extensions{Backend: s, begun: time.Now(), now: map[string]int{}, most: map[string]int{}}
}

func (e *extensions) Extend(ctx context.Context, req backend.Request) error {
	e.mu.Lock()
	e.sent = append(e.sent, time.Since(e.begun))
	e.keys = append(e.keys, req.Key)
	e.now[req.Key]++
	e.total++
	e.most[req.Key] = max(e.most[req.Key], e.now[req.Key])
	e.peak = max(e.peak, e.total)
	hook := e.hook
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.now[req.Key]--
		e.total--
	}()
	next := func() error { return e.Backend.Extend(ctx, req) }
	if hook != nil {
		return hook(ctx, req, next)
	}
	return next()
}

// on puts h before every following extension.
func (e *extensions) on(h func(ctx context.Context, req backend.Request, next func() error) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hook = h
}

// at returns when extensions were sent.
func (e *extensions) at() []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.sent)
}

// together returns how many extensions were sent at each instant.
func (e *extensions) together() map[time.Duration]int {
	n := map[time.Duration]int{}
	for _, at := range e.at() {
		n[at]++
	}
	return n
}

// watching is bubble with a Client whose extensions are recorded.
func watching(t *testing.T, f func(t *testing.T, e *extensions, c *locker.Client)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		e := watched(newStore())
		c := locker.NewClient(e)
		f(t, e, c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// late is a backend that answers acquisitions late.
type late struct {
	backend.Backend
	by time.Duration
}

func (l late) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := l.Backend.Acquire(ctx, req)
	time.Sleep(l.by)
	return g, err
}
