package soak

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// forgetful is a Locker whose holders are not told that their locks are lost.
type forgetful struct {
	locker.Locker
	endless bool // they also believe that their leases last
}

func (f forgetful) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := f.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return untold{lease, f.endless}, nil
}

type untold struct {
	locker.Lease
	endless bool
}

func (untold) Done() <-chan struct{} { return nil }
func (untold) Err() error            { return nil }

func (u untold) Until() time.Time {
	if u.endless {
		return time.Now().Add(time.Hour)
	}
	return u.Lease.Until()
}

// mortal is a store whose client can die: nothing that it sends arrives then.
type mortal struct {
	*memory.Backend
	dead atomic.Bool
}

func (m *mortal) Extend(ctx context.Context, req backend.Request) error {
	if m.dead.Load() {
		return locker.ErrUnavailable
	}
	return m.Backend.Extend(ctx, req)
}

func (m *mortal) Release(ctx context.Context, req backend.Request) error {
	if m.dead.Load() {
		return locker.ErrUnavailable
	}
	return m.Backend.Release(ctx, req)
}

// The judge finds two leaders when the context of OnElected ignores the loss of the lease. The leader can no longer
// reach the store, and another one leads when the TTL ends.
func TestLeadersThatIgnoreTheLossAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		plant func(locker.Locker) locker.Locker
		found string
	}{
		"the context does not end": {func(l locker.Locker) locker.Locker { return forgetful{l, false} }, "goes on to lead"},
		"nor does the lease":       {func(l locker.Locker) locker.Locker { return forgetful{l, true} }, "was relied on"},
		"nothing is wrong here":    {func(l locker.Locker) locker.Locker { return l }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				j, store := newJudge(), memory.NewBackend()
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				start := func(who int) *mortal {
					m := &mortal{Backend: store}
					c := locker.NewClient(m)
					w := &worker{plan: plan{Who: who}, Locker: tt.plant(c), say: func(w word) { j.hear(who, w) }}
					all.Go(func() {
						w.campaigns(ctx)
						_ = c.Close()
					})
					return m
				}
				first := start(1)
				time.Sleep(time.Second)
				start(2)
				time.Sleep(time.Second)
				first.dead.Store(true)
				time.Sleep(3 * ttl)
				cancel()
				all.Wait()
				if leaders := j.count(func(s *span) bool { return s.last > 0 }); leaders < 2 {
					t.Errorf("%d terms", leaders)
				}
				found := strings.Join(j.verdict(), "; ")
				if (found == "") != (tt.found == "") || !strings.Contains(found, tt.found) {
					t.Errorf("the judge found %q, expected: %q", found, tt.found)
				}
			})
		})
	}
}
