package conformance

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
)

// backends makes n Backends of a fresh store, closed in the end.
func backends(t testing.TB, h BackendHarness, n int) ([]locker.Backend, BackendStore) {
	t.Helper()
	s := h.Store(t)
	if s.Open == nil {
		t.Fatal("conformance: BackendStore needs Open")
	}
	bs := make([]locker.Backend, n)
	for i := range bs {
		bs[i] = s.Open()
		if c, ok := bs[i].(io.Closer); ok {
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Errorf("Close: expected no error, seen %v", err)
				}
			})
		}
	}
	return bs, s
}

// brief is the TTL of locks that should end soon. In real time it leaves room for a machine that is busy.
func (h BackendHarness) brief() time.Duration {
	if h.Bubble != nil {
		return 100 * time.Millisecond
	}
	return 500 * time.Millisecond
}

// sure reports whether it is still certain that o has its lock, if it was set for ttl. If not, the machine has stalled.
func (o *holding) sure(ttl time.Duration) bool { return time.Since(o.sent) < ttl }

// milliseconds is how late "within milliseconds" may be. In real time the best of several tries counts.
func (h BackendHarness) milliseconds() (late time.Duration, tries int) {
	if h.Bubble != nil {
		return 20 * time.Millisecond, 1
	}
	return 200 * time.Millisecond, 5
}

// holding is a grant, with the request that its owner makes of it: what a Client keeps of a lease.
type holding struct {
	b    locker.Backend
	req  locker.Request
	sent time.Time // its TTL counts from here
}

// request makes one as a Client does.
func request(key string, ttl time.Duration) locker.Request {
	return locker.Request{Key: key, Token: locker.NewToken(), TTL: ttl}
}

func held(b locker.Backend, req locker.Request, sent time.Time, g locker.Grant) *holding {
	req.Fence, req.Private, req.Closing, req.Waiting = g.Fence, g.Private, nil, nil
	if g.Token != "" {
		req.Token = g.Token
	}
	if !g.Sent.IsZero() {
		sent = g.Sent
	}
	return &holding{b, req, sent}
}

// acquire makes one attempt.
func acquire(ctx context.Context, b locker.Backend, key string, ttl time.Duration) (*holding, error) {
	req, sent := request(key, ttl), time.Now()
	g, err := b.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return held(b, req, sent, g), nil
}

// grab acquires a lock that is free.
func grab(t testing.TB, b locker.Backend, key string, ttl time.Duration) *holding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var o *holding
	err := within(t, "Acquire of a free lock", patience, func() (err error) {
		o, err = acquire(ctx, b, key, ttl)
		return err
	})
	if err != nil {
		t.Fatalf("Acquire of the free lock %.40q: expected a grant, seen %v", key, err)
	}
	return o
}

// grabWhenFree polls until it gets key, for limit at most, whatever the errors are meanwhile. It says when it had it.
func grabWhenFree(t testing.TB, b locker.Backend, key string, ttl, limit time.Duration) (*holding, time.Time) {
	t.Helper()
	var o *holding
	var err error
	start, pause := time.Now(), time.Millisecond
	for ; ; time.Sleep(pause) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		late := within(t, "Acquire", patience, func() error {
			o, err = acquire(ctx, b, key, ttl)
			return nil
		})
		cancel()
		if err == nil && late == nil {
			return o, time.Now()
		}
		if time.Since(start) > slack { // it is not about milliseconds any more
			pause = 50 * time.Millisecond
		}
		if time.Since(start) > limit {
			t.Fatalf("expected the lock %.40q to be free within %v, seen %v", key, limit, err)
		}
	}
}

func (o *holding) extend(ctx context.Context, ttl time.Duration) error {
	req := o.req
	req.TTL = ttl
	return o.b.Extend(ctx, req)
}

func (o *holding) release(ctx context.Context) error { return o.b.Release(ctx, o.req) }

func (o *holding) releaseKeeping(ctx context.Context, keep time.Duration) error {
	req := o.req
	req.Keep = keep
	return o.b.Release(ctx, req)
}

// must releases what is held.
func (o *holding) must(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := o.release(ctx); err != nil {
		t.Errorf("Release of the held lock %.40q: expected no error, seen %v", o.req.Key, err)
	}
}

// undisturbed checks that o still holds its lock, by its own answer and another's.
func (o *holding) undisturbed(t testing.TB, what string, other locker.Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if second, err := acquire(ctx, other, o.req.Key, longTTL); err == nil {
		t.Errorf("%s: expected the owner's lock to be held, seen it granted to another", what)
		_ = second.release(ctx)
	}
	if err := o.extend(ctx, longTTL); err != nil {
		t.Errorf("%s: expected the owner to have its lock, seen its Extend fail: %v", what, err)
	}
}

// kinds are what an error of a Backend may match.
var kinds = []error{
	locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrUnavailable, locker.ErrInvalid,
	locker.ErrForeignKey, locker.ErrClosed,
}

// wantKind checks that err matches want and no other kind.
func wantKind(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: expected an error that matches %q, seen %v", what, want, err)
	}
	for _, kind := range kinds {
		if kind != want && errors.Is(err, kind) { //nolint:errorlint // these are the sentinels themselves
			t.Errorf("%s: expected an error that does not match %q, seen %q", what, kind, err)
		}
	}
}

// wantUnknown checks that err leaves open who has the lock.
func wantUnknown(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: expected an error, seen none", what)
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) && kind != locker.ErrUnavailable && kind != locker.ErrClosed { //nolint:errorlint // as above
			t.Errorf("%s: expected an error that leaves the outcome open, seen %q, which matches %q", what, err, kind)
		}
	}
}

// contend lets every Backend lock k again and again, several times at once, and calls inside for each hold, which is to
// end it.
func contend(t testing.TB, bs []locker.Backend, rounds int, inside func(o *holding)) {
	const goroutines = 3
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var wg sync.WaitGroup
	for _, b := range bs {
		for range goroutines {
			wg.Go(func() {
				for range rounds {
					o, err := acquire(ctx, b, "k", longTTL)
					for pause := time.Millisecond; err != nil && ctx.Err() == nil; pause = min(2*pause, 32*time.Millisecond) {
						time.Sleep(pause) // a store of several nodes may find that nobody has got it
						o, err = acquire(ctx, b, "k", longTTL)
					}
					if err != nil {
						t.Errorf("Acquire, again and again: expected a grant, seen %v", err)
						return
					}
					inside(o)
				}
			})
		}
	}
	wg.Wait()
}
