package conformance

import (
	"context"

	"github.com/golocker/locker"
)

var verifyFlaws = []flaw{
	{name: "verifies whoever holds it", fails: []string{"VerifyProves"},
		store: func(s *toy) { s.verifiesAny = true }},
	{name: "middleware hides what can be verified", fails: []string{"VerifyProves"},
		wrapper: func(next locker.Locker) locker.Locker { return &hiding{next} }},
	{name: "verifies by an extension", fails: []string{"VerifyChangesNothing"},
		store: func(s *toy) { s.verifyExtends = true }},
}

func (s *toy) Verify(ctx context.Context, req locker.Request) error {
	if s.verifyExtends {
		return s.Extend(ctx, req)
	}
	_, err := s.answer(ctx, func() (locker.Grant, error) {
		l, ok := s.held(req.Key)
		if !s.owns(l, req) && !s.verifiesAny || !ok {
			return locker.Grant{}, locker.ErrNotHeld
		}
		return locker.Grant{}, nil
	}, nil)
	return err
}

// hiding returns leases that do not show what they wrap.
type hiding struct{ locker.Locker }

func (h *hiding) Unwrap() locker.Locker { return h.Locker }

func (h *hiding) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := h.Locker.TryLock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return struct{ locker.Lease }{lease}, nil
}
