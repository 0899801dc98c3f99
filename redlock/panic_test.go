package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// panics calls f, in which a hook may panic, and reports whether one has.
func panics(t *testing.T, f func()) (panicked bool) {
	t.Helper()
	defer func() {
		p := recover()
		if panicked = p != nil; panicked && p != "hook" {
			t.Errorf("got %v", p)
		}
	}()
	f()
	return false
}

// Whichever vote it is about, a hook that panics leaves nothing on the nodes, and the next caller does not wait. That
// is so for votes that have come, of nodes that have not answered, and of releases.
func TestHookVotedThatPanicsLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		op   string
		but  []int  // these nodes
		are  string // this
		late bool   // once the lock is held
	}{
		{"all nodes answer", opAcquire, nil, "", false},
		{"two nodes hang", opAcquire, []int{1, 3}, "hung", false},
		{"no majority answers", opAcquire, []int{0, 1, 2}, "hung", false},
		{"two nodes are slow", opAcquire, []int{1, 3}, "slow", false},
		{"a release", opRelease, nil, "", false},
		{"a release, and two nodes hang", opRelease, []int{1, 3}, "hung", true},
		{"a release, and two nodes have not answered before", opRelease, []int{1, 3}, "slow", false},
		{"a release that no majority answers", opRelease, []int{0, 1, 2}, "hung", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			votes := 0
			for at := 1; ; at++ {
				panicked := false
				virtual.Test(t, func(t *testing.T) {
					s := newTestbed(t)
					c, next := s.client(), s.client()
					put := func(state string) {
						for _, i := range tt.but {
							s.set(0, i, state)
						}
					}
					if !tt.late {
						put(tt.are)
					}
					n := 0
					ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
						if v.Op == tt.op && !v.Late {
							if n++; n == at {
								panic("hook")
							}
						}
					}})
					panicked = panics(t, func() {
						l, err := c.TryLock(ctx, "k", locker.TTL(time.Minute))
						if err == nil {
							if tt.late {
								time.Sleep(time.Second) // all nodes have answered
								put(tt.are)
							}
							err = l.Unlock(ctx)
						}
						if err != nil && !errors.Is(err, locker.ErrUnavailable) {
							t.Error(err)
						}
					})
					time.Sleep(DefaultBudget)
					put("")
					time.Sleep(10 * time.Second) // what could not be sent is sent again
					start := time.Now()
					if l, err := next.Lock(t.Context(), "k", locker.TTL(time.Minute)); err != nil {
						t.Error(err)
					} else if err := l.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
					if took := time.Since(start); took > 100*time.Millisecond {
						t.Errorf("vote %d: the next one waited for %v", at, took)
					}
					s.close()
				})
				if !panicked {
					break
				}
				votes = at
			}
			if votes < 3 {
				t.Errorf("%d votes", votes)
			}
		})
	}
}

// A waiter whose hook panics leaves the queue, and those behind it do not wait for it.
func TestWaiterWhoseHookPanicsLeaves(t *testing.T) {
	for name, of := range map[string]func(armed *atomic.Bool) *lockertrace.Trace{
		"when it begins to wait": func(*atomic.Bool) *lockertrace.Trace {
			return &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { panic("hook") }}
		},
		"when it is woken": func(*atomic.Bool) *lockertrace.Trace {
			return &lockertrace.Trace{Woken: func(lockertrace.Wake) { panic("hook") }}
		},
		"at a vote of its turn": func(armed *atomic.Bool) *lockertrace.Trace {
			return &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
				if armed.Load() && !v.Late {
					panic("hook")
				}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := newTestbed(t)
				lock := func(c *locker.Client, ctx context.Context) (locker.Lease, error) {
					return c.Lock(ctx, "k", locker.TTL(time.Minute))
				}
				held, err := lock(s.client(), t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var armed atomic.Bool
				panicked, p := make(chan bool), s.client()
				go func() {
					panicked <- panics(t, func() { _, _ = lock(p, lockertrace.With(t.Context(), of(&armed))) })
				}()
				time.Sleep(100 * time.Millisecond)
				next, behind := make(chan error), s.client()
				go func() {
					l, err := lock(behind, t.Context())
					if err == nil {
						err = l.Unlock(t.Context())
					}
					next <- err
				}()
				time.Sleep(100 * time.Millisecond)
				armed.Store(true)
				start := time.Now()
				if err := held.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				if !<-panicked {
					t.Error("no hook has panicked")
				}
				if err := <-next; err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > 100*time.Millisecond {
					t.Error(fmt.Sprint("the next one waited for ", took))
				}
				s.close()
			})
		})
	}
}
