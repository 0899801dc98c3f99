package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
)

// afterOutage adds n chores for a TTL when a store has just stopped to answer, and returns the clean-up a minute later,
// when it answers again.
func afterOutage(t *testing.T, n int, ttl time.Duration) *cleanup {
	c, begun := new(cleanup), time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	c.begin(ctx)
	t.Cleanup(func() {
		cancel()
		c.wait()
	})
	for range n {
		c.add(time.Now().Add(ttl), func(ctx context.Context) error {
			if time.Since(begun) < time.Minute {
				<-ctx.Done()
			}
			return ctx.Err()
		})
	}
	time.Sleep(time.Minute)
	return c
}

// After an outage, a fresh clean-up does not wait for those whose time is over, nor long for those whose time is not.
func TestCleanUpGoesOnAfterAnOutage(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"their time is over": 10 * time.Second, "it is not": time.Hour} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				c := afterOutage(t, 10_000, ttl)
				healed, done := time.Now(), make(chan struct{})
				c.add(time.Now().Add(time.Hour), func(context.Context) error {
					close(done)
					return nil
				})
				<-done
				if took := time.Since(healed); took > DefaultTimeout+time.Second { // the tries that are in progress
					t.Errorf("a fresh clean-up has waited %v", took)
				}
			})
		})
	}
}

// While etcd does not answer, there is a bound for the clean-ups that wait. Those whose time is over make room.
func TestCleanUpsAreBounded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := &store{timeout: time.Second, open: t.Context()}
		b.cleanup.chores = make([]chore, maxChores)
		for i := range b.cleanup.chores {
			b.cleanup.chores[i].until = time.Now().Add(time.Minute)
		}
		req := backend.Request{Key: "k", Token: "t", TTL: time.Second}
		if _, err := b.Acquire(t.Context(), req); !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, errBacklog) {
			t.Errorf("Acquire: expected to be refused, seen %v", err)
		}
		time.Sleep(2 * time.Minute)
		if b.cleanup.full() {
			t.Error("clean-ups whose time is over take room")
		}
	})
}
