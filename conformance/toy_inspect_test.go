package conformance

import (
	"context"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

func (s *toy) Inspect(_ context.Context, key string) (inspect.Inspection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.held(key)
	switch {
	case !ok:
		return inspect.Inspection{State: inspect.Free}, nil
	case l.kept && !s.seesHeldOnly:
		return inspect.Inspection{State: inspect.Kept, Remaining: time.Until(l.expires)}, nil
	}
	i := inspect.Inspection{State: inspect.Held, Owner: l.token, Label: l.label,
		Remaining: time.Until(l.expires), Fence: s.fence}
	if !s.tellsTokens {
		i.Owner = l.token[:min(8, len(l.token))]
	}
	return i, nil
}

func (s *toy) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	i, _ := s.Inspect(ctx, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.held(key); !ok || !s.forcesAny && !strings.HasPrefix(l.token, owner) {
		return i, locker.ErrNotHeld
	}
	if !s.forcesNothing {
		delete(s.locks, key)
		s.tell(key)
	}
	return i, nil
}
