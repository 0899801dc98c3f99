package memory_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// permits is a request for weight of n permits.
func permits(token string, n, weight int) backend.Request {
	req := request("k", token)
	req.Group = &backend.Group{N: n, Weight: weight}
	return req
}

func granted(t *testing.T, b *memory.Backend, req backend.Request, want ...int) backend.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), req)
	if err != nil || !slices.Equal(g.Permits, want) {
		t.Errorf("%s: permits %v, %v; want %v", req.Token, g.Permits, err, want)
	}
	return g
}

func refused(t *testing.T, b *memory.Backend, req backend.Request, label string, left time.Duration) {
	t.Helper()
	_, err := b.Acquire(t.Context(), req)
	var held *locker.HeldError
	if !errors.As(err, &held) || held.Label != label || held.Remaining != left {
		t.Errorf("%s: %v; want %q and %v", req.Token, err, label, left)
	}
}

func returns(t *testing.T, b *memory.Backend, req backend.Request) {
	t.Helper()
	if err := b.Release(t.Context(), req); err != nil {
		t.Errorf("release by %s: %v", req.Token, err)
	}
}

// What is returned goes to the first that waits once it can have all that it wants, and then to those behind it that
// have room beside it. Nobody overtakes it meanwhile.
func TestPermitsAreHandedOnInOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		one, two := permits("one", 4, 1), permits("two", 4, 3)
		first := granted(t, b, one, 0)
		second := granted(t, b, two, 1, 2, 3)
		heavy := queue(t.Context(), b, permits("heavy", 4, 2))
		light := queue(t.Context(), b, permits("light", 4, 1))
		third := queue(t.Context(), b, permits("third", 4, 2))
		returns(t, b, one)
		waits(t, "a caller of two permits while one is free", heavy)
		waits(t, "a caller behind it", light)
		refused(t, b, permits("newcomer", 4, 1), "", 0)
		returns(t, b, two)
		soon(t, "heavy", heavy, nil)
		soon(t, "light", light, nil)
		waits(t, "a caller of two permits while one is free", third)
		if first.Fence >= second.Fence {
			t.Errorf("token %d after token %d", second.Fence, first.Fence)
		}
		returns(t, b, permits("light", 4, 1))
		soon(t, "third", third, nil)
		returns(t, b, permits("heavy", 4, 2))
		returns(t, b, permits("third", 4, 2))
		if left := memory.Left(b); len(left) > 0 {
			t.Errorf("%q is still stored", left)
		}
	})
}

// A permit is free from the moment at which the time of its holder is over, whoever comes then. Nobody sweeps it up.
func TestPermitsEndByThemselves(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		long := permits("long", 2, 1)
		long.TTL, long.Label = time.Minute, "web-7"
		granted(t, b, permits("dead", 2, 1), 0)
		granted(t, b, long, 1)
		time.Sleep(time.Second - 1)
		refused(t, b, permits("early", 2, 1), "", 1)
		waiting := queue(t.Context(), b, permits("next", 2, 1))
		time.Sleep(time.Nanosecond)
		soon(t, "the next", waiting, nil)
		if err := b.Extend(t.Context(), permits("dead", 2, 1)); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("an extension after the end: %v", err)
		}
		if err := b.Release(t.Context(), permits("dead", 2, 1)); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("a release after the end: %v", err)
		}
		time.Sleep(time.Second)
		again := granted(t, b, permits("again", 2, 1), 0)
		if twice := granted(t, b, permits("again", 2, 1), 0); twice.Fence != again.Fence {
			t.Errorf("a request that was sent twice has the tokens %d and %d", again.Fence, twice.Fence)
		}
		refused(t, b, permits("late", 2, 1), "", time.Second)
	})
}

// A permit that is kept after its release is handed on when that time is over, and belongs to nobody until then.
func TestPermitIsKept(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		kept := permits("kept", 1, 1)
		granted(t, b, kept, 0)
		waiting := queue(t.Context(), b, permits("next", 1, 1))
		kept.Keep = 3 * time.Second
		returns(t, b, kept)
		if err := b.Extend(t.Context(), kept); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("an extension after the release: %v", err)
		}
		time.Sleep(kept.Keep - 1)
		waits(t, "the next, while the permit is kept", waiting)
		time.Sleep(time.Nanosecond)
		soon(t, "the next", waiting, nil)
	})
}

// Programs with different limits have no permit beyond their own. A waiter for one below its limit keeps its place.
func TestGroupOfCallersWithDifferentLimits(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		granted(t, b, permits("a", 2, 1), 0)
		granted(t, b, permits("b", 4, 1), 1)
		few := queue(t.Context(), b, permits("few", 2, 1))
		refused(t, b, permits("c", 4, 1), "", 0)
		many := queue(t.Context(), b, permits("many", 4, 2))
		waits(t, "who may have two, behind who may have none of them", many)
		returns(t, b, permits("b", 4, 1))
		soon(t, "few", few, nil)
		soon(t, "many", many, nil)
		refused(t, b, permits("d", 4, 1), "", time.Second)
	})
}

// A caller that leaves makes way for those behind it, also if it was granted what it wanted at that moment.
func TestWaiterForPermitsLeaves(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		granted(t, b, permits("a", 3, 2), 0, 1)
		ctx, leave := context.WithCancel(t.Context())
		heavy := queue(ctx, b, permits("heavy", 3, 3))
		light := queue(t.Context(), b, permits("light", 3, 1))
		waits(t, "light", light)
		leave()
		soon(t, "heavy", heavy, locker.ErrHeld)
		soon(t, "light", light, nil)
		wait, closes := clientwait.New(t.Context(), locker.Patience(0))
		closed := queueWith(t.Context(), b, permits("closed", 3, 2), wait)
		after := queue(t.Context(), b, permits("after", 3, 2))
		closes()
		returns(t, b, permits("a", 3, 2)) // at the same time
		if err := <-closed; err == nil {
			returns(t, b, permits("closed", 3, 2))
		} else if !errors.Is(err, locker.ErrClosed) {
			t.Error(err)
		}
		soon(t, "after", after, nil)
		returns(t, b, permits("after", 3, 2))
		returns(t, b, permits("light", 3, 1))
		if left := memory.Left(b); len(left) > 0 {
			t.Errorf("%q is still stored", left)
		}
	})
}

// Operators see one of the holders and how many wait, and release the permits of the owner that they name.
func TestInspectPermits(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		one, two := permits("first-owner", 2, 1), permits("second-owner", 2, 1)
		two.TTL, two.Label = time.Minute, "web-7"
		granted(t, b, one, 0)
		granted(t, b, two, 1)
		beyond := permits("beyond", 3, 1)
		beyond.TTL = time.Hour
		granted(t, b, beyond, 2)
		wanted := 0
		defer b.NotifyWanted(two, func() { wanted++ })()
		next := queue(t.Context(), b, permits("next", 2, 1))
		i, err := b.Inspect(t.Context(), "k")
		if err != nil || i.Owner != "first-ow" || i.Remaining != time.Second || i.Waiting != 1 || wanted != 1 {
			t.Errorf("%+v, %v; told %d times", i, err, wanted)
		}
		for _, of := range []struct {
			req  backend.Request
			want bool
		}{{two, true}, {beyond, false}} { // the permit 2 is of no use to one that knows of two
			is := false
			b.NotifyWanted(of.req, func() { is = true })()
			if is != of.want {
				t.Errorf("%s is wanted: %v", of.req.Token, is)
			}
		}
		for owner, want := range map[string]error{"third": locker.ErrNotHeld, "": locker.ErrInvalid} {
			if _, err := b.ForceRelease(t.Context(), "k", owner); !errors.Is(err, want) {
				t.Errorf("released by force from %q: %v, want %v", owner, err, want)
			}
		}
		i, err = b.ForceRelease(t.Context(), "k", "second")
		if err != nil || i.Owner != "second-o" || i.Label != "web-7" || i.Remaining != time.Minute {
			t.Errorf("released by force, and not the first owner: %+v, %v", i, err)
		}
		soon(t, "next", next, nil)
		if err := b.Verify(t.Context(), one); err != nil {
			t.Errorf("the permit of another owner: %v", err)
		}
		if err := b.Verify(t.Context(), two); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("the permit that was released: %v", err)
		}
	})
}

// A waiter that sleeps until the end of a long entry is woken when one is granted that ends before.
func TestWaiterForPermitsSleepsUntilTheFirstEnd(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		long := permits("long", 1, 1)
		long.TTL = time.Minute
		granted(t, b, long, 0)
		dead := queue(t.Context(), b, permits("dead", 1, 1))
		waits(t, "who dies then", dead)
		next := queue(t.Context(), b, permits("next", 1, 1))
		waits(t, "the next", next)
		returns(t, b, long)
		soon(t, "who dies then", dead, nil)
		time.Sleep(time.Second - 1)
		waits(t, "the next", next)
		time.Sleep(time.Nanosecond)
		soon(t, "the next", next, nil)
	})
}
