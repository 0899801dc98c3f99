package conformance

import (
	"context"
	"errors"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

type resumeCall = func(ctx context.Context, req backend.Request, from string) (backend.Grant, error)

func (c *client) Export(ctx context.Context, req backend.Request, to string) error {
	return c.export(ctx, req, to)
}

func (c *client) Resume(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
	return c.resume(ctx, req, from)
}

// exports sets what a store without a flaw does to export and resume locks. undo frees the lock of an attempt whose
// reply is lost.
func (s *store) exports(undo func(req backend.Request, from string)) {
	s.export = func(ctx context.Context, req backend.Request, to string) error {
		loses, err := s.reach(ctx)
		if err != nil {
			return err
		}
		if err = s.mem.Export(ctx, req, to); err == nil {
			s.granted(backend.Request{Key: req.Key, Token: to, TTL: req.TTL})
		}
		if loses {
			return errLost
		}
		return err
	}
	s.resume = func(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
		loses, err := s.reach(ctx)
		if errors.Is(err, errSilent) { // what is sent next comes before it
			undo(req, from)
		}
		if err != nil {
			return backend.Grant{}, err
		}
		g, err := s.mem.Resume(ctx, req, from)
		if loses {
			undo(req, from)
			return backend.Grant{}, errLost
		}
		if err == nil {
			s.granted(req)
		}
		return g, err
	}
}

// undo is what a store without a flaw does about an attempt to resume whose outcome is not known.
func (s *store) undo(req backend.Request, from string) {
	for _, owner := range []string{req.Token, from} {
		req.Token = owner
		_ = s.mem.Release(context.Background(), req)
	}
}

// resumes has wrap change resume.
func (s *store) resumes(wrap func(next resumeCall) resumeCall) { s.resume = wrap(s.resume) }

// exportFlaws are mistakes of stores that export locks.
var exportFlaws = []flaw{
	{name: "export: renewals go on", fails: []string{"ExportEndsTheOwner"}, store: func(s *store) {
		now := map[string]string{} // owner values
		export, extend, resume := s.export, s.extend, s.resume
		s.export = func(ctx context.Context, req backend.Request, to string) error {
			s.with(func() { now[req.Token] = to })
			return export(ctx, req, to)
		}
		s.resume = func(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
			s.with(func() { now[from] = req.Token })
			return resume(ctx, req, from)
		}
		s.extend = func(ctx context.Context, req backend.Request) error {
			s.with(func() {
				for now[req.Token] != "" {
					req.Token = now[req.Token]
				}
			})
			return extend(ctx, req)
		}
	}},
	{name: "export: the lock keeps its TTL", fails: []string{"ExportedLockEnds"}, store: func(s *store) {
		export := s.export
		s.export = func(ctx context.Context, req backend.Request, to string) error {
			i, _ := s.mem.Inspect(ctx, req.Key)
			req.TTL = i.Remaining
			return export(ctx, req, to)
		}
	}},
	{name: "export: a late request begins the TTL anew", fails: []string{"ExportTwiceIsOne"}, store: func(s *store) {
		export := s.export
		s.export = func(ctx context.Context, req backend.Request, to string) error {
			if s.of(req.Key).Token == to {
				req.Token = to
				return s.mem.Extend(ctx, req)
			}
			return export(ctx, req, to)
		}
	}},
	{name: "export: nobody can release it", fails: []string{"ExportInDoubtIsReleased"}, store: func(s *store) {
		exported := map[string]bool{} // owner values
		export, release := s.export, s.release
		s.export = func(ctx context.Context, req backend.Request, to string) error {
			s.with(func() { exported[to] = true })
			return export(ctx, req, to)
		}
		s.release = func(ctx context.Context, req backend.Request) error {
			var refused bool
			if s.with(func() { refused = exported[req.Token] }); refused {
				return locker.ErrNotHeld
			}
			return release(ctx, req)
		}
	}},
	{name: "export: the token stays", fails: []string{"ResumeHasANewToken"}, store: func(s *store) {
		shown := map[uint64]uint64{} // by the token of the store
		s.resumes(func(next resumeCall) resumeCall {
			return func(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
				i, _ := s.mem.Inspect(ctx, req.Key)
				g, err := next(ctx, req, from)
				s.with(func() {
					if _, ok := shown[g.Fence]; !ok {
						shown[g.Fence] = i.Fence
					}
					g.Fence = shown[g.Fence]
				})
				return g, err
			}
		})
		verify := s.verify
		s.verify = func(ctx context.Context, req backend.Request) error {
			req.Fence += 1 << 40
			return verify(ctx, req)
		}
	}},
	{name: "export: a text is used twice", fails: []string{"ResumeOnlyOnce"}, store: func(s *store) {
		used := map[string]backend.Request{} // by the owner value of the text
		s.resumes(func(next resumeCall) resumeCall {
			return func(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
				g, err := next(ctx, req, from)
				var last backend.Request
				s.with(func() {
					if last = used[from]; err == nil {
						used[from] = req
					}
				})
				if err != nil && last.Token != "" && s.mem.Release(ctx, last) == nil {
					return s.mem.Acquire(ctx, req)
				}
				return g, err
			}
		})
	}},
	{name: "export: a repeated request is refused", fails: []string{"ResumeTwiceIsGrantedOnce"}, store: func(s *store) {
		s.resumes(func(next resumeCall) resumeCall {
			return func(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
				if s.of(req.Key).Token == req.Token {
					return backend.Grant{}, &locker.NotHeldError{Reason: locker.LostTakenOver}
				}
				return next(ctx, req, from)
			}
		})
	}},
	{name: "export: a lock that has ended is acquired", fails: []string{"ResumeNeverAcquires"}, store: func(s *store) {
		s.resumes(func(next resumeCall) resumeCall {
			return func(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
				g, err := next(ctx, req, from)
				if last := s.of(req.Key); errors.Is(err, locker.ErrNotHeld) && last.Token == from && last.expired() {
					return s.mem.Acquire(ctx, req)
				}
				return g, err
			}
		})
	}},
	{name: "export: nothing is undone", fails: []string{"ResumeInDoubtIsUndone"}, store: func(s *store) {
		s.exports(func(backend.Request, string) {})
	}},
}
