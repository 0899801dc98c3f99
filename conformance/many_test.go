package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// manyFlaws are mistakes with several locks. Properties of one lock notice those with one lock.
var manyFlaws = []flaw{
	{name: "the leases of a step cannot be extended", fails: []string{"ManyAcquireAll"},
		client: func(l *flawedLocker) {
			next := l.tryLockMany
			l.tryLockMany = func(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
				leases, err := next(ctx, m, opts...)
				for i, lease := range leases {
					if lease == nil {
						continue
					}
					leases[i] = &badLease{Lease: lease, extend: func(context.Context, ...locker.Option) error {
						return &locker.Error{Op: "extend", Key: lease.Key(), Err: locker.ErrUnavailable}
					}}
				}
				return leases, err
			}
		}},
	{name: "a step names the first lock, whichever is held", fails: []string{"ManyAcquireNothing"},
		client: func(l *flawedLocker) {
			next := l.tryLockMany
			l.tryLockMany = func(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
				leases, err := next(ctx, m, opts...)
				if e := (*locker.Error)(nil); errors.As(err, &e) {
					err = &locker.Error{Op: e.Op, Key: m.Keys[0], Err: e.Err}
				}
				return leases, err
			}
		}},
	{name: "a step whose caller has left is not undone", fails: []string{"ManyCancelledLeaveNothing"},
		store: func(s *store) { s.stepsThatFail(errSilent) }},
	{name: "a step has no tokens", fails: []string{"ManyFencesGrow"}, store: func(s *store) {
		many := s.acquireMany
		s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
			grants, err := many(ctx, reqs)
			for i := range grants {
				grants[i].Fence = 0
			}
			return grants, err
		}
	}},
	{name: "states common tokens, and each key has tokens of its own", fails: []string{"ManyFencesGrow"},
		store: func(s *store) {
			own := func(key string, g *backend.Grant) {
				if strings.HasPrefix(key, "{many}c") {
					g.Fence -= 1 << 40
				}
			}
			many := s.acquireMany
			s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
				grants, err := many(ctx, reqs)
				for i, g := range grants {
					own(reqs[i].Key, g)
				}
				return grants, err
			}
			s.attempts(func(next acquireCall) acquireCall {
				return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
					g, err := next(ctx, req)
					if err == nil {
						own(req.Key, &g)
					}
					return g, err
				}
			})
		}},
	{name: "the leases of a step do not notice a loss", fails: []string{"ManyLossEnds"}, store: func(s *store) {
		many, extend, stepped := s.acquireMany, s.extend, map[string]bool{}
		s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
			s.with(func() {
				for _, req := range reqs {
					stepped[req.Token] = true
				}
			})
			return many(ctx, reqs)
		}
		s.extend = func(ctx context.Context, req backend.Request) error {
			err, inStep := extend(ctx, req), false
			if s.with(func() { inStep = stepped[req.Token] }); inStep && errors.Is(err, locker.ErrNotHeld) {
				return nil
			}
			return err
		}
	}},
	{name: "a step checks the locks, then takes them", fails: []string{"ManyExclude"}, store: func(s *store) {
		many := s.acquireMany
		s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
			if !slices.ContainsFunc(reqs, func(req backend.Request) bool {
				i, _ := s.mem.Inspect(ctx, req.Key)
				return i.State != inspect.Free
			}) {
				select { // others come in between
				case <-ctx.Done():
					return nil, errSilent
				case <-time.After(5 * time.Millisecond):
				}
				for _, req := range reqs {
					s.delete(req.Key)
				}
			}
			return many(ctx, reqs)
		}
	}},
	{name: "a step takes one lock after the other", fails: []string{"ManyInOneStep"}, store: func(s *store) {
		s.acquireMany = func(ctx context.Context, reqs []backend.Request) (grants []*backend.Grant, err error) {
			for i, req := range reqs {
				g, err := s.acquire(ctx, req)
				if err != nil {
					for _, got := range reqs[:i] {
						_ = s.release(context.WithoutCancel(ctx), got)
					}
					return nil, &locker.Error{Op: "trylock", Key: req.Key, Err: err}
				}
				grants = append(grants, &g)
			}
			return grants, nil
		}
	}},
	{name: "a step with a shorter TTL", fails: []string{"ManyGrantEach"}, store: func(s *store) {
		many := s.acquireMany
		s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
			reqs = slices.Clone(reqs)
			for i := range reqs {
				reqs[i].TTL = reqs[i].TTL * 8 / 10
			}
			return many(ctx, reqs)
		}
	}},
	{name: "a step takes its own locks for another's", fails: []string{"ManyTwiceAreGrantedTwice"},
		store: func(s *store) {
			many := s.acquireMany
			s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
				for _, req := range reqs {
					if g := s.of(req.Key); g.held() && g.Token == req.Token {
						return nil, &locker.Error{Op: "trylock", Key: req.Key, Err: &locker.HeldError{}}
					}
				}
				return many(ctx, reqs)
			}
		}},
	{name: "a step that fails prolongs the lock that is held", fails: []string{"ManyTouchNothing"},
		store: func(s *store) {
			many := s.acquireMany
			s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
				grants, err := many(ctx, reqs)
				if g := s.of(keyOf(err)); errors.Is(err, locker.ErrHeld) && g.held() {
					g.TTL = reqs[0].TTL
					_ = s.extend(ctx, g.Request)
				}
				return grants, err
			}
		}},
	{name: "a step overtakes those who wait", fails: []string{"ManyOvertakeNobody"},
		store: func(s *store) { s.comesBetween(func(key string) bool { return slices.Contains(oneSlot(), key) }) }},
	{name: "a step whose reply is lost is not undone", fails: []string{"LostReplyIsNoAnswer"},
		store: func(s *store) { s.stepsThatFail(errLost) }},
	{name: "a failed call for several locks keeps those that were free", broad: true,
		fails: []string{"ManyAcquireNothing", "ManyTouchNothing"}, store: func(s *store) {
			many := s.acquireMany
			s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
				grants, err := many(ctx, reqs)
				if errors.Is(err, locker.ErrHeld) {
					for _, req := range reqs {
						s.land(req)
					}
				}
				return grants, err
			}
		}},
}

// stepsThatFail executes steps that fail in one way.
func (s *store) stepsThatFail(how error) {
	many := s.acquireMany
	s.acquireMany = func(ctx context.Context, reqs []backend.Request) ([]*backend.Grant, error) {
		grants, err := many(ctx, reqs)
		if errors.Is(err, how) && !s.isHung() {
			_, _ = s.mem.AcquireMany(context.Background(), reqs, backend.Choice{})
		}
		return grants, err
	}
}
