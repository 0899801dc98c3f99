package conformance

import (
	"context"
	"time"

	"github.com/golocker/locker"
)

func (s *toy) Extend(ctx context.Context, req locker.Request) error {
	_, err := s.answer(ctx, func() (locker.Grant, error) {
		l, ok := s.held(req.Key)
		s.extends[req.Token]++
		switch {
		case s.tires && s.extends[req.Token] > 30: // ten TTLs with three renewals each
			return locker.Grant{}, locker.ErrUnavailable
		case ok && s.owns(l, req) || ok && s.extendAny || !ok && s.extendCreates:
		case ok && s.prolongsOthers && l.token != "":
			l.expires = time.Now().Add(req.TTL)
			s.locks[req.Key] = l
			return locker.Grant{}, locker.ErrNotHeld
		default:
			if s.expiredIsFault && !ok && l.token == req.Token {
				return locker.Grant{}, locker.ErrUnavailable
			}
			if !ok && (s.createsSecretly || s.revivesSecretly && l.token == req.Token) {
				s.locks[req.Key] = toyLock{req.Token, req.Label, req.Fence, time.Now().Add(req.TTL), false, false}
			}
			return locker.Grant{}, locker.ErrNotHeld
		}
		end := s.after(req.TTL)
		switch {
		case s.shortens:
			end = time.Now().Add(req.TTL / 4)
		case s.extendsShort:
			end = time.Now().Add(req.TTL * 8 / 10)
			fallthrough
		default:
			if end.Before(l.expires) && !(s.setsEnd && time.Until(l.expires) > 2*req.TTL) {
				end = l.expires
			}
		}
		if s.extendDropsLabel {
			l.label = ""
		}
		s.locks[req.Key] = toyLock{req.Token, l.label, l.fence, end, false, false}
		return locker.Grant{}, nil
	}, nil)
	if err != nil && s.extendErr != nil {
		err = s.extendErr(err)
	}
	return err
}

func (s *toy) Release(ctx context.Context, req locker.Request) error {
	err := s.release(ctx, req)
	if err == refused && !s.giveUpRelease {
		go func() {
			for n := 0; n < 100 && s.release(context.Background(), req) == refused; n++ {
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	if err != nil && s.releaseErr != nil {
		err = s.releaseErr(err)
	}
	return err
}

func (s *toy) release(ctx context.Context, req locker.Request) error {
	answers := false
	s.with(func() { answers = s.hung == nil })
	own := func() (locker.Grant, error) {
		if l, ok := s.held(req.Key); s.deletesSecretly && ok && l.token != req.Token && l.token != "" {
			delete(s.locks, req.Key)
		}
		if l, ok := s.held(req.Key); !ok || !s.owns(l, req) && !s.releaseAny {
			return locker.Grant{}, locker.ErrNotHeld
		}
		return locker.Grant{}, nil
	}
	free := func() (locker.Grant, error) {
		switch l := s.locks[req.Key]; {
		case s.releaseLeaves && answers && ctx.Err() != nil:
			return locker.Grant{}, silent
		case req.Keep > 0 && s.keepsOwner:
			l.expires, l.kept = time.Now().Add(req.Keep), true
			s.locks[req.Key] = l
		case req.Keep > 0 && !s.ignoresKeep:
			keep := req.Keep
			if s.keepsShort {
				keep = keep * 8 / 10
			}
			s.locks[req.Key] = toyLock{"", "", l.fence, s.after(keep), false, true}
			if s.leavesKept {
				s.husks[req.Key] = true
			}
		case !s.neverFrees:
			delete(s.locks, req.Key)
			if s.leavesHusks {
				s.husks[req.Key] = true
			}
		}
		s.tell(req.Key)
		return locker.Grant{}, nil
	}
	if s.twoSteps {
		return s.inTwoSteps(ctx, own, free)
	}
	_, err := s.answer(ctx, func() (locker.Grant, error) {
		if g, err := own(); err != nil {
			return g, err
		}
		return free()
	}, nil)
	return err
}

// inTwoSteps reads, waits for the answer, and acts on it, although the state may have changed.
func (s *toy) inTwoSteps(ctx context.Context, ask, act func() (locker.Grant, error)) error {
	insist := func(do func() (locker.Grant, error)) error {
		for {
			if _, err := s.answer(context.Background(), do, nil); err != lostLink {
				return err
			}
		}
	}
	done := make(chan error, 1)
	go func() {
		err := insist(ask)
		if err == nil {
			time.Sleep(500 * time.Microsecond)
			err = insist(act)
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return silent
	}
}

// tell notifies the waiters.
func (s *toy) tell(key string) {
	if s.deaf {
		return
	}
	s.changes++
	if !s.neverTells {
		for _, wake := range s.wakes[key] {
			go (*wake)()
		}
	}
}
