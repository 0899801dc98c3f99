package conformance

import (
	"context"
	"time"

	"github.com/golocker/locker"
)

// toySteps are mistakes with several locks.
type toySteps struct {
	manyForgets, manyShort, manyProlongs, manyOvertakes, manyLostIgnored, manyChecksThenSets, manyOneByOne,
	manyKeeps bool
}

// AcquireMany acquires several locks in one step, or in the way of a flaw.
func (b *toyBackend) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	s := b.toy
	if s.manyOneByOne {
		return b.oneByOne(ctx, reqs)
	}
	if s.manyChecksThenSets {
		_, err := s.answer(ctx, func() (locker.Grant, error) { return locker.Grant{}, s.checkAll(reqs) }, nil)
		if err != nil {
			return nil, err
		}
		select { // others come in between
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	var grants []locker.Grant
	_, err := s.answer(ctx, func() (locker.Grant, error) {
		err := s.checkAll(reqs)
		if err != nil && !(s.manyChecksThenSets && ctx.Err() == nil) && !s.manyKeeps {
			return locker.Grant{}, err
		}
		grants = s.takeAll(reqs)
		if s.manyKeeps {
			return locker.Grant{}, err
		}
		return locker.Grant{}, nil
	}, func() {
		if s.manyLostIgnored && ctx.Err() == nil {
			return
		}
		for _, req := range reqs {
			s.drop(req)
		}
	})
	if err != nil {
		if s.acquireErr != nil {
			err = s.acquireErr(err)
		}
		return nil, err
	}
	return grants, nil
}

// checkAll says which lock is held. The caller holds mu.
func (s *toy) checkAll(reqs []locker.Request) error {
	for _, req := range reqs {
		l := s.locks[req.Key]
		err := s.check(req)
		if err == nil && (len(s.line[req.Key]) > 0 && !s.manyOvertakes || s.manyForgets && l.token == req.Token) {
			err = l.heldError()
		}
		if err != nil {
			if s.manyProlongs {
				l.expires = s.after(req.TTL)
				s.locks[req.Key] = l
			}
			return &locker.Error{Op: "trylock", Key: req.Key, Err: err}
		}
	}
	return nil
}

// takeAll grants the locks that are free. The caller holds mu.
func (s *toy) takeAll(reqs []locker.Request) []locker.Grant {
	grants := make([]locker.Grant, len(reqs))
	for i, req := range reqs {
		if s.manyChecksThenSets && s.locks[req.Key].token != req.Token {
			delete(s.locks, req.Key)
		}
		l, ok := s.held(req.Key)
		if !ok {
			_, _ = s.take(req)
			l = s.locks[req.Key]
			if s.manyShort {
				l.expires = time.Now().Add(req.TTL * 8 / 10)
				s.locks[req.Key] = l
			}
		}
		grants[i].Fence = l.fence
	}
	return grants
}

// oneByOne acquires one lock after the other, and releases what it has when it finds one that is held.
func (b *toyBackend) oneByOne(ctx context.Context, reqs []locker.Request) (grants []locker.Grant, err error) {
	for i, req := range reqs {
		g, err := b.Acquire(ctx, req)
		if err != nil {
			for _, got := range reqs[:i] {
				_ = b.Release(context.WithoutCancel(ctx), got)
			}
			return nil, &locker.Error{Op: "trylock", Key: req.Key, Err: err}
		}
		grants = append(grants, g)
	}
	return grants, nil
}
