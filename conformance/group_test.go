package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// withGroups is a store that has groups, of permits and of locks, and no flaw.
func withGroups(s *store) { s.can.Groups, s.can.Kinds = true, true }

// groupFlaws are mistakes with groups of permits.
var groupFlaws = []flaw{
	{name: "group: a waiter behind another one hears of nothing for a while", fails: []string{"GroupHandsOn"},
		store: func(s *store) {
			withGroups(s)
			queue := s.queue
			s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				i, _ := s.mem.Inspect(ctx, req.Key)
				g, err := queue(ctx, req)
				if i.Waiting > 0 {
					time.Sleep(2 * time.Second)
				}
				return g, err
			}
		}},
	{name: "group: newcomers take what is free", fails: []string{"GroupOvertakesNobody"}, store: func(s *store) {
		withGroups(s)
		acquire := s.acquire
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := acquire(ctx, req)
			if errors.Is(err, locker.ErrHeld) {
				req.Key += "#more"
				return acquire(ctx, req)
			}
			return g, err
		}
	}},
	{name: "group: a repeated request is another one", fails: []string{"GroupTwiceIsGrantedOnce"}, store: func(s *store) {
		withGroups(s)
		var n atomic.Int64
		acquire := s.acquire
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if n.Add(1) > 1 {
				req.Token = backend.NewToken()
			}
			g, err := acquire(ctx, req)
			g.Token = req.Token
			return g, err
		}
	}},
}
