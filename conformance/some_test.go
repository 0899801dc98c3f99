package conformance

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// someCall is AcquireMany of a store, for some of the locks.
type someCall = func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error)

// some makes a flaw of a store from a function that changes AcquireMany.
func some(wrap func(s *store, next someCall) someCall) func(s *store) {
	return func(s *store) { s.acquireSome = wrap(s, s.acquireSome) }
}

// comesBetween lets others come between the grant of a lock to a waiter and the waiter.
func (s *store) comesBetween(about func(key string) bool) {
	queue := s.queue
	s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		waits := s.of(req.Key).held()
		g, err := queue(ctx, req)
		if i, _ := s.mem.Inspect(ctx, req.Key); err == nil && waits && i.Waiting == 0 && about(req.Key) {
			s.delete(req.Key)
			time.Sleep(5 * time.Millisecond)
			return queue(ctx, req)
		}
		return g, err
	}
}

// someFlaws are mistakes with some of several locks.
var someFlaws = []flaw{
	{name: "some: the last free locks are acquired", fails: []string{"SomeFirstFree"},
		store: some(func(_ *store, next someCall) someCall {
			return func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
				reqs = slices.Clone(reqs)
				slices.Reverse(reqs)
				grants, err := next(ctx, reqs, c)
				slices.Reverse(grants)
				return grants, err
			}
		})},
	{name: "some: too few locks are kept", fails: []string{"SomeOrNothing"},
		store: some(func(s *store, next someCall) someCall {
			return func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
				grants, err := next(ctx, reqs, c)
				if errors.Is(err, locker.ErrHeld) && !slices.Contains(c.Gates, keyOf(err)) {
					for _, req := range reqs {
						s.land(req)
					}
				}
				return grants, err
			}
		})},
	{name: "some: a gate that nobody waits for is open", fails: []string{"SomeGateRefuses"},
		store: some(func(s *store, next someCall) someCall {
			acquire, tokens := s.acquire, map[string]bool{}
			s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				s.with(func() { tokens[req.Token] = true })
				return acquire(ctx, req)
			}
			return func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
				if c.Spare > 0 {
					return next(ctx, reqs, c)
				}
				c.Gates = slices.DeleteFunc(slices.Clone(c.Gates), func(gate string) (open bool) {
					i, _ := s.mem.Inspect(ctx, gate)
					g := s.of(gate)
					s.with(func() { open = i.Waiting == 0 && tokens[g.Token] })
					return open
				})
				return next(ctx, reqs, c)
			}
		})},
	{name: "some: a gate never opens", fails: []string{"SomeGateOpensWhenManyAreFree"},
		store: some(func(_ *store, next someCall) someCall {
			return func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
				c.Spare = 0
				return next(ctx, reqs, c)
			}
		})},
	{name: "some: a gate opens when too few locks are free", fails: []string{"SomeGateOpensWhenManyAreFree"},
		store: some(func(_ *store, next someCall) someCall {
			return func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
				c.Spare = min(c.Spare, 1)
				return next(ctx, reqs, c)
			}
		})},
	{name: "some: a gate without a holder is open", fails: []string{"SomeQueueAtTheGateRefuses"},
		store: func(s *store) { s.comesBetween(func(key string) bool { return key == gate }) }},
	{name: "some: a step overtakes those who wait for a lock", fails: []string{"SomeOvertakeNobody"},
		store: func(s *store) { s.comesBetween(func(key string) bool { return slices.Contains(places(), key) }) }},
	{name: "some: a step does not count its own locks", fails: []string{"SomeTwiceAreGrantedTwice"},
		store: some(func(s *store, next someCall) someCall {
			return func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
				others := slices.Clone(reqs)
				for i, req := range reqs {
					if g := s.of(req.Key); g.held() && g.Token == req.Token {
						others[i].Token = backend.NewToken()
					}
				}
				return next(ctx, others, c)
			}
		})},
	{name: "some: a step whose reply is lost is not undone", fails: []string{"LostReplyIsNoAnswer"},
		store: some(func(s *store, next someCall) someCall {
			return func(ctx context.Context, reqs []backend.Request, c backend.Choice) ([]*backend.Grant, error) {
				grants, err := next(ctx, reqs, c)
				if errors.Is(err, errLost) {
					_, _ = s.mem.AcquireMany(context.Background(), reqs, c)
				}
				return grants, err
			}
		})},
	{name: "some: no step for some locks", fails: []string{"SomeInOneStep"}, client: func(l *flawedLocker) {
		next := l.tryLockMany
		l.tryLockMany = func(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
			if len(m.Gates) > 0 {
				return nil, errors.ErrUnsupported
			}
			return next(ctx, m, opts...)
		}
	}},
}
