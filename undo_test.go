package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
)

func TestLockDoesNotWaitForTheReleaseOfAGrantThatCameTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		var released bool
		s.on("acquire", func(_ context.Context, next func() error) error {
			defer time.Sleep(ttl)
			return next()
		})
		s.on("release", func(ctx context.Context, next func() error) error {
			time.Sleep(200 * time.Millisecond)
			if err := ctx.Err(); err != nil {
				t.Errorf("the release is bounded by the caller's context: %v", err)
			}
			released = true
			return next()
		})
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		start := time.Now()
		_, err := c.Lock(ctx, "k", locker.TTL(ttl))
		wantErr(t, err, locker.ErrUnavailable, context.DeadlineExceeded)
		if d := time.Since(start); d != ttl {
			t.Errorf("returned %v after the answer", d-ttl)
		}
		if err := c.Close(); err != nil || !released {
			t.Errorf("Close returned (%v) before the release", err)
		}
	})
}

// If the store does not answer, Close must not wait until the release is given up.
func TestCloseGivesUpLateReleases(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		s.on("acquire", func(_ context.Context, next func() error) error {
			defer time.Sleep(ttl)
			return next()
		})
		s.on("release", hang)
		_, err := c.Lock(t.Context(), "k", locker.TTL(ttl))
		wantErr(t, err, locker.ErrUnavailable)
		start := time.Now()
		_ = c.Close()
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("Close took %v", d)
		}
	})
}
