package natslock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/natslock"
)

// Tokens begin at the clock when the bucket is created, and each message owns a block of them.
func TestTokens(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	take := func(b *natslock.Backend, token string, fences int) backend.Grant {
		t.Helper()
		req := request("k", token)
		req.Fences = fences
		g, err := b.Acquire(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		req.Fence, req.Private = g.Fence, g.Private
		if err := b.Release(ctx, req); err != nil {
			t.Fatal(err)
		}
		return g
	}
	before := uint64(time.Now().UnixMicro()) - backend.MaxFences
	a, b := natslock.NewBackend(s.js), natslock.NewBackend(s.connect(t))
	first := take(a, "a", 1)
	if now := uint64(time.Now().UnixMicro()); first.Fence < before || first.Fence > now || first.Fences != 1 {
		t.Errorf("expected one token from %d to %d, seen %d from %d on", before, now, first.Fences, first.Fence)
	}
	second := take(b, "b", backend.MaxFences)
	if n := second.Fence - first.Fence; n == 0 || n%backend.MaxFences != 0 || second.Fences != backend.MaxFences {
		t.Errorf("expected a block of tokens, seen %d from %d on after %d", second.Fences, second.Fence, first.Fence)
	}

	// A bucket of that name is made again, and the Backends do not know.
	if err := s.js.DeleteStream(ctx, "KV_"+natslock.DefaultBucket); err != nil {
		t.Fatal(err)
	}
	s.store.Left(ctx)
	last := second
	for range 2 {
		for name, b := range map[string]*natslock.Backend{"a": a, "b": b, "new": natslock.NewBackend(s.js)} {
			g := take(b, name, backend.MaxFences)
			if g.Fence <= last.Fence+uint64(last.Fences)-1 || g.Fence > uint64(time.Now().UnixMicro())+1_000_000 {
				t.Errorf("in a new bucket: token %d of %s after %d", g.Fence, name, last.Fence)
			}
			last = g
		}
	}
}

// Tokens cannot be raised while there are locks. The error says what to do.
func TestRaiseFences(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	b := s.store
	first, err := b.Acquire(ctx, request("k", "a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, past := range []uint64{0, first.Fence, first.Fence + backend.MaxFences - 1} {
		if err := b.RaiseFences(ctx, past); err != nil {
			t.Errorf("tokens are past %d already: expected no error, seen %v", past, err)
		}
	}
	past := first.Fence + 1_000_000_000
	if err := b.RaiseFences(ctx, past); !errors.Is(err, errors.ErrUnsupported) {
		t.Fatalf("RaiseFences past %d: expected ErrUnsupported, seen %v", past, err)
	}
	if err := s.stream().Purge(ctx, jetstream.WithPurgeSequence(past/backend.MaxFences+1)); err != nil {
		t.Fatal(err)
	}
	second, err := b.Acquire(ctx, request("k", "b"))
	if err != nil || second.Fence <= past || second.Fence > past+1000 {
		t.Errorf("after the purge: expected a token just past %d, seen %d, %v", past, second.Fence, err)
	}
	if err := b.RaiseFences(ctx, past); err != nil {
		t.Errorf("after the purge: expected no error, seen %v", err)
	}

	if err := s.stream().Purge(ctx, jetstream.WithPurgeSequence(1<<46)); err != nil {
		t.Fatal(err)
	}
	if g, err := b.Acquire(ctx, request("k", "c")); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("tokens of 2⁵³ and more: expected ErrUnavailable, seen %v and token %d", err, g.Fence)
	}
	reqs := []backend.Request{request("x", "c"), request("y", "c")}
	if _, err := b.AcquireMany(ctx, reqs, backend.Choice{}); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("several tokens of 2⁵³ and more: expected ErrUnavailable, seen %v", err)
	}
}
