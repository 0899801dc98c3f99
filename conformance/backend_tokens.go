package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// raisers makes two Backends of a store that raises its tokens, or skips the property. raise reports whether the store
// can raise them so far.
func raisers(t testing.TB, h Harness) (_ []backend.Backend, raise func(past uint64) bool) {
	t.Helper()
	bs, _ := backends(t, h, 2)
	need(t, backend.Of(bs[0]).Tokens, "Tokens")
	b, ok := bs[0].(inspect.FenceRaiser)
	if !ok {
		t.Skip("the Backend does not implement inspect.FenceRaiser")
	}
	return bs, func(past uint64) bool {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		defer cancel()
		err := b.RaiseFences(ctx, past)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Fatalf("RaiseFences: expected no error, seen %v", err)
		}
		return err == nil
	}
}

func tokensAreRaised(t testing.TB, h Harness) {
	bs, raise := raisers(t, h)
	holder := grab(t, bs[1], "held", longTTL)
	past := holder.req.Fence + 1<<30 // tokens that follow a clock in microseconds get there in 18 minutes
	if !raise(past) {                // maybe the store can only tell that they are past a number already
		if past = holder.req.Fence; !raise(past) {
			t.Skip("RaiseFences of the Backend fails with errors.ErrUnsupported")
		}
	}
	wantPast := func(what string) {
		t.Helper()
		for _, b := range bs {
			for _, key := range []string{"k", "another"} { // a key may have a counter of its own
				o := grab(t, b, key, longTTL)
				if o.req.Fence <= past {
					t.Errorf("%s: expected a token greater than %d, seen %d", what, past, o.req.Fence)
				}
				o.must(t)
			}
		}
	}
	wantPast("after RaiseFences")
	raise(holder.req.Fence - 1)
	wantPast("after RaiseFences with a smaller number")
	if err := holder.extend(t.Context(), longTTL); err != nil {
		t.Errorf("Extend of a lock that was held during RaiseFences: expected no error, seen %v", err)
	}
	if v, ok := bs[1].(backend.Verifier); ok {
		if err := v.Verify(t.Context(), holder.req); err != nil {
			t.Errorf("Verify of a lock that was held during RaiseFences: expected no error, seen %v", err)
		}
	}
	holder.must(t)
}

func raisingIsOneStep(t testing.TB, h Harness) {
	bs, raise := raisers(t, h)
	var seen grants
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for start := time.Now(); ctx.Err() == nil; time.Sleep(pause(start, time.Millisecond)) {
			asked := time.Now()
			if o, err := acquire(ctx, bs[1], "k", longTTL); err == nil {
				seen.add(o.req.Fence, asked)
				_ = o.release(context.WithoutCancel(ctx))
			}
		}
	}()
	// since waits for a grant that was asked for after a time, and returns its token.
	since := func(after time.Time) (fence uint64) {
		t.Helper()
		if !until(hangLimit, func() bool {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			last := len(seen.all) - 1
			if last < 0 || !seen.all[last].asked.After(after) {
				return false
			}
			fence = seen.all[last].fence
			return true
		}) {
			t.Errorf("Acquire: expected the lock to be granted within %v, seen no grant", hangLimit)
		}
		return fence
	}
	for range 3 {
		past := since(time.Now()) + 2 // grants may get there before
		raised := raise(past)
		if fence := since(time.Now()); raised && fence <= past {
			t.Errorf("a grant after RaiseFences: expected a token greater than %d, seen %d", past, fence)
		}
	}
	cancel()
	<-stopped
	seen.check(t, false)
}
