package conformance

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func oneOwner(t testing.TB, h BackendHarness) {
	const rounds = 4
	bs, _ := backends(t, h, 3)
	var inside, counter atomic.Int32
	contend(t, bs, rounds, func(o *holding) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("expected one owner, seen %d at once", n)
		}
		seen := counter.Load()
		time.Sleep(time.Millisecond)
		counter.Store(seen + 1) // not an atomic increment: that is what the lock is for
		inside.Add(-1)
		o.must(t)
	})
	if want := int32(len(bs) * 3 * rounds); counter.Load() != want {
		t.Errorf("expected %d increments under the lock, seen %d", want, counter.Load())
	}
}

func heldIsHeld(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	owner := grab(t, bs[0], "k", longTTL)
	for i, who := range []string{"the same Backend", "another Backend"} {
		what := "Acquire of a held lock by " + who
		err := within(t, what, 0, func() error {
			_, err := acquire(t.Context(), bs[i], "k", longTTL)
			return err
		})
		wantKind(t, what, err, locker.ErrHeld)
		if e := (*locker.HeldError)(nil); errors.As(err, &e) && (e.Remaining < 0 || e.Remaining > longTTL+time.Second) {
			t.Errorf("%s: expected a remaining time from 0 (not known) to the TTL of %v, seen %v", what, longTTL, e.Remaining)
		}
	}
	if err := owner.extend(t.Context(), longTTL); err != nil {
		t.Errorf("Extend by the owner after others have asked: expected no error, seen %v", err)
	}
	owner.must(t)
}

func acquireTwiceIsGrantedTwice(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	for range 3 {
		req, sent := request("k", longTTL), time.Now()
		first, err := bs[0].Acquire(t.Context(), req)
		if err != nil {
			t.Fatalf("Acquire of a free lock: expected a grant, seen %v", err)
		}
		second, err := bs[0].Acquire(t.Context(), req)
		if err != nil {
			t.Errorf("the same Acquire again: expected a grant, seen %v", err)
			second = first
		}
		if second.Fence < first.Fence {
			t.Errorf("the same Acquire again: expected token %d again, seen a smaller one, %d", first.Fence, second.Fence)
		}
		held(bs[0], req, sent, second).must(t)
		grab(t, bs[1], "k", longTTL).must(t)
	}
}

func releaseFrees(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 2)
	for i := range 10 {
		o := grab(t, bs[i%2], "k", longTTL)
		for range i % 3 { // who asks meanwhile may remember the answer
			if other, err := acquire(t.Context(), bs[1-i%2], "k", longTTL); err == nil {
				_ = other.release(t.Context())
			}
		}
		o.must(t)
	}
}

func keysDoNotTouch(t testing.TB, h BackendHarness) {
	bs, _ := backends(t, h, 1)
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a:b", "{a}", "{a}b", "a}b", "}{", "{", "{}", "{}a", "a{b}c{d}", "a\x00", "a\x00b", "\r\n", "*", "a*", "%61",
		"..", "a/../b", "käse", "kÄse", "\xff\xfe", "0", "';--", strings.Repeat("x", locker.MaxKey), strings.Repeat("x", locker.MaxKey-1),
	}
	var owners []*holding
	for _, key := range keys {
		owners = append(owners, grab(t, bs[0], key, longTTL))
	}
	for i, o := range owners {
		o.must(t)
		for _, other := range owners[i+1:] {
			if err := other.extend(t.Context(), longTTL); err != nil {
				t.Fatalf("after the Release of %.40q: expected the lock %.40q to be held, seen its Extend fail: %v", o.req.Key, other.req.Key, err)
			}
		}
	}
}

func foreignIsLeftAlone(t testing.TB, h BackendHarness) {
	bs, s := backends(t, h, 1)
	if s.Foreign == nil {
		t.Skip("the harness has no Foreign")
	}
	intact := s.Foreign("k")
	check := func(what string, call func(context.Context, locker.Request) (locker.Grant, error)) {
		wantKind(t, what, within(t, what, 0, func() error {
			_, err := call(t.Context(), request("k", longTTL))
			return err
		}), locker.ErrForeignKey)
	}
	check("Acquire", bs[0].Acquire)
	if q, ok := bs[0].(locker.Queuer); ok {
		check("Queue", q.Queue)
	}
	if intact != nil && !intact() {
		t.Error("expected what is not a lock to be left alone, seen it changed")
	}
}

func closeIsFinal(t testing.TB, h BackendHarness) {
	bs, s := backends(t, h, 1)
	closed := s.Open()
	closer, ok := closed.(io.Closer)
	if !ok {
		t.Skip("the Backend has no Close")
	}
	grab(t, closed, "k", longTTL).must(t)
	if err := within(t, "Close", patience, closer.Close); err != nil {
		t.Errorf("Close: expected no error, seen %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := within(t, "Acquire after Close", 0, func() error {
		_, err := acquire(ctx, closed, "k", longTTL)
		return err
	})
	if !errors.Is(err, locker.ErrClosed) && !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Acquire after Close: expected an error that matches ErrClosed or ErrUnavailable, seen %v", err)
	}
	grab(t, bs[0], "k", longTTL).must(t)
}
