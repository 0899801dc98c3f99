package nats_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/backends/nats"
)

// A leader whose followers are stopped has an attempt on its way to them while the record ends over which the attempt
// stores the lock. The clean-up of the attempt must not believe this leader that there is nothing to undo: when the
// followers go on, the attempt is stored.
func TestUndoDoesNotBelieveALeaderWithoutAMajority(t *testing.T) {
	t.Parallel()
	c, ctx := startCluster(t), t.Context()
	b := c.backend()
	var last uint64
	var key string
	undo := func(ctx context.Context) error { return b.Undo(ctx, key, last, "late") }
	resume := func() {
		for _, s := range c.servers {
			s.Resume()
		}
	}
	defer resume()
	for n := 0; ; n++ { // until the attempt is sent before the record ends
		key = fmt.Sprint("k", n)
		c.within("a free record", func(ctx context.Context) (err error) {
			last, err = b.PutFree(ctx, key, 2*time.Second)
			return err
		})
		leader := c.leader()
		b = nats.NewBackend(store{Server: leader, t: t}.connect(t))
		for _, s := range c.servers {
			if s != leader {
				s.Pause()
			}
		}
		sent, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		err := b.PutHeld(sent, key, last, "late")
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		t.Logf("attempt %d: %v", n, err)
		resume()
	}
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		err := undo(bounded)
		cancel()
		if err == nil {
			t.Fatal("the attempt counts as undone, although no majority knows of that")
		}
	}
	resume()
	c.within("undoing the attempt", undo)
	if left := c.backend().Left(ctx); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
