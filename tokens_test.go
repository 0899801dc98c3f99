package locker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/memory"
)

// A Client says why it cannot raise tokens, and asks the store only if it may.
func TestTokensAreNotRaised(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c := locker.NewClient(memory.NewBackend())
	closed := locker.NewClient(memory.NewBackend())
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	without := locker.NewClient(struct{ backend.Backend }{memory.NewBackend()})
	defer without.Close()
	for _, tt := range []struct {
		ctx  context.Context
		c    inspect.FenceRaiser
		past uint64
		want error
	}{
		{t.Context(), c, 1<<52 - 1, nil},
		{t.Context(), c, 1 << 52, locker.ErrInvalid},
		{t.Context(), without, 1, errors.ErrUnsupported},
		{t.Context(), closed, 1, locker.ErrClosed},
		{ended, c, 1, context.Canceled},
	} {
		if err := tt.c.RaiseFences(tt.ctx, tt.past); !errors.Is(err, tt.want) {
			t.Errorf("RaiseFences past %d: got %v, want %v", tt.past, err, tt.want)
		}
	}
}
