package locker_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// Only while other callers wait for the lock, more than one token is asked for.
func TestTokensAreAskedForWhileOthersWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := counting{memory.NewBackend(), make(chan int, 10)}
		c := locker.NewClient(s)
		wants := func(want int) {
			t.Helper()
			if got := <-s.fences; got != want {
				t.Errorf("%d tokens were asked for, want %d", got, want)
			}
		}
		one := takes(t, "the first", asks(t.Context(), c, "k"))
		wants(0)
		two := asks(t.Context(), c, "k")
		wants(0)
		three, four := asks(t.Context(), c, "k"), asks(t.Context(), c, "k")
		if err := one.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		one = takes(t, "the second", two)
		synctest.Wait()
		wants(backend.MaxFences)
		for _, next := range []<-chan granted{three, four} {
			if err := one.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			one = takes(t, "the next", next)
		}
		if err := one.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		one = takes(t, "the last", asks(t.Context(), c, "k"))
		wants(0)
		// A block for a caller that needs a grant of its own would be lost, and tokens would outrun the clock.
		two = asks(t.Context(), c, "k", locker.Label("a"))
		wants(0)
		three = asks(t.Context(), c, "k")
		if err := one.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		one = takes(t, "one with a label", two)
		wants(0)
		if err := one.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if next := takes(t, "one without", three); next.Fence() != one.Fence()+1 {
			t.Errorf("token %d after %d", next.Fence(), one.Fence())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A caller that waits in the store's queue asks for the tokens when it gets the lock. So two callers that come again
// and again hand the lock over to each other.
func TestTokensAreAskedForWhenTheLockIsGranted(t *testing.T) {
	for name, tt := range map[string]struct {
		front, behind []locker.Option
		want          bool
	}{
		"handed over":                   {want: true},
		"the front has NoLocalHandover": {front: []locker.Option{locker.NoLocalHandover()}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				c := locker.NewClient(queuing{newStore()})
				first := mustLock(t, c, "k")
				front := asks(t.Context(), c, "k", tt.front...)
				behind := asks(t.Context(), c, "k", tt.behind...)
				if err := first.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				second := takes(t, "the one at the front", front)
				if err := second.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				third := takes(t, "the one behind", behind)
				if got := third.Token() == second.Token(); got != tt.want {
					t.Errorf("handed over within the process: %v", got)
				}
				if err := third.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// counting reports how many tokens are asked for.
type counting struct {
	*memory.Backend
	fences chan int
}

func (s counting) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	s.fences <- req.Fences
	return s.Backend.Queue(ctx, req, wait)
}

// A grant has as many leases as it has tokens. Then the next caller is at the store already.
func TestTokensOfAGrantAreUsedUp(t *testing.T) {
	for _, queue := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			s := newStore()
			few := fewTokens{s, 3}
			var b backend.Backend = few
			if queue {
				b = struct {
					fewTokens
					backend.Queuer
				}{few, fewTokensQueued{few}}
			}
			c := locker.NewClient(b)
			before := mustLock(t, c, "k")
			var waiting []<-chan granted
			for range 8 {
				waiting = append(waiting, asks(t.Context(), c, "k"))
			}
			lease, owners := before, map[string]int{}
			for i, w := range waiting {
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				next := takes(t, "a caller", w)
				if next.Fence() <= lease.Fence() {
					t.Errorf("caller %d has the token %d after %d", i, next.Fence(), lease.Fence())
				}
				lease = next
				if owners[lease.Token()]++; owners[lease.Token()] > 3 {
					t.Error("a grant of three tokens has more leases")
				}
			}
			if len(owners) > 4 {
				t.Errorf("grants of three tokens, and each had so many leases: %v", owners)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// fewTokens grants at most n tokens at once.
type fewTokens struct {
	*store
	n int
}

func (s fewTokens) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.Fences = min(req.Fences, s.n)
	return s.store.Acquire(ctx, req)
}

type fewTokensQueued struct{ fewTokens }

func (s fewTokensQueued) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	g, err := queuing{s.store}.Queue(ctx, req, wait)
	g.Fences = min(g.Fences, s.n)
	return g, err
}
