package telemetry_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/memory"
)

// store is a memory backend. It records all tokens, and one operation can be made to fail.
type store struct {
	*memory.Backend
	tokens  *tokens
	mu      sync.Mutex
	failing string
}

func (s *store) fail(op string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = op
}

func (s *store) fails(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing == op {
		return errDown
	}
	return nil
}

func (s *store) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	s.tokens.note(req.Token)
	return s.Backend.Acquire(ctx, req)
}

func (s *store) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	s.tokens.note(req.Token)
	if err := s.fails("queue"); err != nil {
		return backend.Grant{}, err
	}
	return s.Backend.Queue(ctx, req, wait)
}

func (s *store) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	for _, req := range reqs {
		s.tokens.note(req.Token)
	}
	if err := s.fails("acquire many"); err != nil {
		return nil, err
	}
	return s.Backend.AcquireMany(ctx, reqs, c)
}

func (s *store) Extend(ctx context.Context, req backend.Request) error {
	if err := s.fails("extend"); err != nil {
		return err
	}
	return s.Backend.Extend(ctx, req)
}

func (s *store) Release(ctx context.Context, req backend.Request) error {
	if err := s.fails("release"); err != nil {
		return err
	}
	return s.Backend.Release(ctx, req)
}

var errDown = fmt.Errorf("%w: connection refused", locker.ErrUnavailable)
