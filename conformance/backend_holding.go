package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// holding is a grant, with the request for its Extend and Release calls: the state that a Client keeps for a lease.
type holding struct {
	b    backend.Backend
	req  backend.Request
	sent time.Time // the start of its TTL
}

// sure reports whether o still holds a lock that was set for ttl. If not, the machine has stalled.
func (o *holding) sure(ttl time.Duration) bool { return time.Since(o.sent) < ttl }

// request makes a Request as a Client does.
func request(key string, ttl time.Duration) backend.Request {
	return backend.Request{Key: key, Token: backend.NewToken(), TTL: ttl}
}

func held(b backend.Backend, req backend.Request, sent time.Time, g backend.Grant) *holding {
	req.Fence, req.Private = g.Fence, g.Private
	if g.Token != "" {
		req.Token = g.Token
	}
	if !g.Sent.IsZero() {
		sent = g.Sent
	}
	return &holding{b, req, sent}
}

// acquire makes one attempt to acquire key.
func acquire(ctx context.Context, b backend.Backend, key string, ttl time.Duration) (*holding, error) {
	req, sent := request(key, ttl), time.Now()
	g, err := b.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return held(b, req, sent, g), nil
}

// grab acquires a free lock and fails the check if that is not possible.
func grab(t testing.TB, b backend.Backend, key string, ttl time.Duration) *holding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	var o *holding
	start := time.Now()
	err := within(t, "Acquire of a free lock", hangLimit, func() (err error) {
		o, err = acquire(ctx, b, key, ttl)
		return err
	})
	prompt(t, start)
	if err != nil {
		t.Fatalf("Acquire of the free lock %.40q: expected a grant, seen %v", key, err)
	}
	return o
}

// grabWhenFree polls until it acquires key, for limit at most, and ignores errors in between. It returns the time of
// the grant.
func grabWhenFree(t testing.TB, b backend.Backend, key string, ttl, limit time.Duration) (*holding, time.Time) {
	t.Helper()
	var o *holding
	var err error
	for start := time.Now(); ; time.Sleep(pause(start, time.Millisecond)) {
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		late := within(t, "Acquire", hangLimit, func() error {
			o, err = acquire(ctx, b, key, ttl)
			return nil
		})
		cancel()
		if err == nil && late == nil {
			return o, time.Now()
		}
		if time.Since(start) > limit {
			t.Fatalf("expected the lock %.40q to be free within %v, seen %v", key, limit, err)
		}
	}
}

// acquireWithin tries until it acquires key, for limit at most.
func acquireWithin(t testing.TB, b backend.Backend, key string, limit time.Duration) (o *holding, err error) {
	start := time.Now()
	o, err = acquire(t.Context(), b, key, longTTL)
	for err != nil && time.Since(start) < limit {
		time.Sleep(pause(start, time.Millisecond))
		o, err = acquire(t.Context(), b, key, longTTL)
	}
	return o, err
}

// pause is how long a loop sleeps that has looked for a free lock since start: step, and longer when the lock is so
// late that steps no longer matter.
func pause(start time.Time, step time.Duration) time.Duration {
	if time.Since(start) > slack {
		return 50 * time.Millisecond
	}
	return step
}

// settled waits until abandoned calls have left the keys free.
func settled(t testing.TB, b backend.Backend, keys ...string) {
	t.Helper()
	for _, key := range keys {
		o, _ := grabWhenFree(t, b, key, longTTL, recovery)
		o.must(t)
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

// must releases the lock and fails the check if that is not possible.
func (o *holding) must(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	if err := o.release(ctx); err != nil {
		t.Errorf("Release of the held lock %.40q: expected no error, seen %v", o.req.Key, err)
	}
}

// kinds are the sentinel errors that an error of a Backend may match.
var kinds = []error{
	locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrUnavailable, locker.ErrInvalid,
	locker.ErrForeignKey, locker.ErrClosed,
}

// wantKind checks that err matches want and none of the other kinds.
func wantKind(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: expected an error that matches %q, seen %v", what, want, err)
	}
	for _, kind := range kinds {
		if kind != want && errors.Is(err, kind) { //nolint:errorlint // the sentinels themselves are compared
			t.Errorf("%s: expected an error that does not match %q, seen %q", what, kind, err)
		}
	}
}

// wantUnknown checks that err leaves open whether the lock is held.
func wantUnknown(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: expected an error, seen none", what)
	}
	for _, kind := range kinds {
		if kind == locker.ErrUnavailable || kind == locker.ErrClosed { //nolint:errorlint // the sentinels themselves
			continue
		}
		if errors.Is(err, kind) {
			t.Errorf("%s: expected an error that leaves the outcome open, seen %q, which matches %q", what, err, kind)
		}
	}
}
