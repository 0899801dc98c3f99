package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// inGroups returns the same flaws over a store that has groups.
func inGroups(flaws []flaw) (same []flaw) {
	for _, f := range flaws {
		f.name, f.store = f.name+", of a group", withGroups
		same = append(same, f)
	}
	return same
}

// ofKinds makes a flaw of a store that has groups from one that changes it.
func ofKinds(name, fails string, change func(s *store)) flaw {
	return flaw{name: "kinds: " + name, fails: []string{fails}, store: func(s *store) {
		withGroups(s)
		change(s)
	}}
}

// kindFlaws are mistakes with groups of locks.
var kindFlaws = []flaw{
	ofKinds("an upgradeable lock is a shared one", "KindsExclude", func(s *store) {
		acquire := s.acquire
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := acquire(ctx, req)
			if req.Group != nil && req.Group.Kind == backend.Upgradeable && errors.Is(err, locker.ErrHeld) {
				req.Group = &backend.Group{Kind: backend.Shared}
				return acquire(ctx, req)
			}
			return g, err
		}
	}),
	ofKinds("a reader behind another one hears of nothing for a while", "KindsHandOn", func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			i, _ := s.mem.Inspect(ctx, req.Key)
			g, err := queue(ctx, req)
			if i.Waiting > 0 && req.Group.From == "" && req.Group.Kind == backend.Shared {
				time.Sleep(4 * time.Second)
			}
			return g, err
		}
	}),
	ofKinds("a reader that waits passes a writer", "KindsHandOn", func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			i, _ := s.mem.Inspect(ctx, req.Key)
			if i.Waiting > 4 {
				req.Key += "#beside"
			}
			return queue(ctx, req)
		}
	}),
	ofKinds("an upgrade waits behind others", "UpgradePassesTheQueue", func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			i, _ := s.mem.Inspect(ctx, req.Key)
			g, err := queue(ctx, req)
			if req.Group.From != "" && i.Waiting > 0 {
				time.Sleep(4 * time.Second)
			}
			return g, err
		}
	}),
	ofKinds("an upgrade takes the place of what it is of", "UpgradePassesTheQueue", func(s *store) {
		acquire := s.acquire
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if req.Group != nil && req.Group.From != "" {
				old := req
				old.Token = req.Group.From
				_ = s.release(ctx, old)
				req.Group = &backend.Group{Kind: backend.Exclusive}
			}
			return acquire(ctx, req)
		}
	}),
	ofKinds("a downgrade is an extension and no more", "DowngradeHandsOn", func(s *store) {
		extend := s.extend
		s.extend = func(ctx context.Context, req backend.Request) error {
			if req.Group != nil && req.Wanted == nil {
				req.Group = &backend.Group{Kind: backend.Exclusive}
			}
			return extend(ctx, req)
		}
	}),
	ofKinds("nobody is told of a writer", "KindsAreWanted", func(s *store) {
		extend := s.extend
		s.extend = func(ctx context.Context, req backend.Request) error {
			req.Wanted = nil
			return extend(ctx, req)
		}
	}),
	ofKinds("everybody is told of everybody", "KindsAreWanted", func(s *store) {
		extend := s.extend
		s.extend = func(ctx context.Context, req backend.Request) error {
			if i, _ := s.mem.Inspect(ctx, req.Key); i.Waiting > 0 && req.Wanted != nil {
				req.Wanted()
			}
			return extend(ctx, req)
		}
	}),
}
