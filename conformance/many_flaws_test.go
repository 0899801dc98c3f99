package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/short"
)

// manyFlaws are mistakes with several locks. Those with one lock are noticed by properties of one lock.
var manyFlaws = []flaw{
	{name: "the leases of a step cannot be extended", fails: []string{"ManyAcquireAll"},
		wrapper: steps(stepping{lease: badLease{extend: func(l locker.Lease, _ context.Context) error {
			return &locker.Error{Op: "extend", Key: l.Key(), Err: locker.ErrUnavailable}
		}}})},
	{name: "a step names the first lock, whichever is held", fails: []string{"ManyAcquireNothing"},
		wrapper: steps(stepping{err: func(err error, keys []string) error {
			if e := (*locker.Error)(nil); errors.As(err, &e) {
				return &locker.Error{Op: e.Op, Key: keys[0], Err: e.Err}
			}
			return err
		}})},
	{name: "a step goes on without its caller", fails: []string{"ManyCancelledLeaveNothing"},
		wrapper: steps(stepping{stubborn: true})},
	{name: "the leases of a step have no tokens", fails: []string{"ManyFencesGrow"},
		wrapper: steps(stepping{unfenced: true})},
	{name: "the leases of a step do not notice a loss", fails: []string{"ManyLossEnds"},
		wrapper: steps(stepping{lease: badLease{done: unnoticed, err: func(l locker.Lease) error {
			if noticed(l) {
				return nil
			}
			return l.Err()
		}}})},
	{name: "a step checks the locks, then takes them", fails: []string{"ManyExclude"},
		store: func(s *toy) { s.manyChecksThenSets = true }},
	{name: "a step takes one lock after the other", fails: []string{"ManyInOneStep"},
		store: func(s *toy) { s.manyOneByOne = true }},
	{name: "declares a step but hides it", fails: []string{"ManyInOneStep"},
		wrapper: bad(badLocker{}), change: func(h *Harness) { h.Steps = true }},
	{name: "a step with a shorter TTL", fails: []string{"ManyGrantEach"},
		store: func(s *toy) { s.manyShort = true }},
	{name: "a step takes its own locks for another's", fails: []string{"ManyTwiceAreGrantedTwice"},
		store: func(s *toy) { s.manyForgets = true }},
	{name: "a step that fails prolongs the lock that is held", fails: []string{"ManyTouchNothing"},
		store: func(s *toy) { s.manyProlongs = true }},
	{name: "a step overtakes those who wait", fails: []string{"ManyOvertakeNobody"}, role: queuer,
		store: func(s *toy) { s.manyOvertakes = true }},
	{name: "a step whose reply is lost is not undone", fails: []string{"ManyLostReplyLeavesNothing"},
		store: func(s *toy) { s.manyLostIgnored = true }},
}

// Each flaw is noticed by the listed properties and by no others, those of one lock included.
func TestManySuiteCatchesFlaws(t *testing.T) {
	t.Parallel()
	for _, f := range short.Part(t, 3, manyFlaws) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			wantFailures(t, virtually(t, harness(f), backendSuite), f.fails, f.broad)
		})
	}
}

// Every property has a flaw that no other property notices.
func TestEveryManyPropertyHasAFlaw(t *testing.T) {
	eachHasItsOwn(t, slices.Concat(manyProperties, manyBackendProperties), alone(manyFlaws))
}

// stepping changes the results of TryLockMany.
type stepping struct {
	locker.Locker
	lease    badLease
	err      func(err error, keys []string) error
	stubborn bool // it goes on when its caller has left
	unfenced bool
}

func steps(s stepping) locker.Middleware {
	return func(next locker.Locker) locker.Locker {
		s := s
		s.Locker = next
		return &s
	}
}

func (s *stepping) Unwrap() locker.Locker { return s.Locker }

func (s *stepping) TryLockMany(ctx context.Context, keys []string, opts ...locker.Option) ([]locker.Lease, error) {
	leases, err := s.call(ctx, keys, opts)
	if err != nil && s.err != nil {
		err = s.err(err, keys)
	}
	for i, l := range leases {
		bad := s.lease
		bad.Lease = l
		if leases[i] = &bad; s.unfenced {
			leases[i] = tokenless{&bad}
		}
	}
	return leases, err
}

func (s *stepping) call(ctx context.Context, keys []string, opts []locker.Option) ([]locker.Lease, error) {
	if !s.stubborn {
		return locker.TryLockMany(ctx, s.Locker, keys, opts...)
	}
	type result struct {
		leases []locker.Lease
		err    error
	}
	done := make(chan result, 1)
	go func() {
		leases, err := locker.TryLockMany(context.WithoutCancel(ctx), s.Locker, keys, opts...)
		done <- result{leases, err}
	}()
	select {
	case r := <-done:
		return r.leases, r.err
	case <-ctx.Done():
		return nil, &locker.Error{Op: "trylock", Key: keys[0], Err: ctx.Err()}
	}
}

// tokenless is a lease without a fencing token.
type tokenless struct{ *badLease }

func (tokenless) Fence() uint64 { return 0 }

func (t tokenless) Unwrap() locker.Lease { return t.badLease }
