package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/contention"
)

// A leader whose followers are stopped has an attempt on its way to them while the record ends over which the attempt
// stores the lock. The clean-up of the attempt must not believe this leader that there is nothing to undo: when the
// followers go on, the attempt is stored.
func TestUndoDoesNotBelieveALeaderWithoutAMajority(t *testing.T) {
	t.Parallel()
	c, ctx := startCluster(t), t.Context()
	b := c.store()
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
		b = natslock.NewBackend(store{Server: leader, t: t}.connect(t))
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
	c.nothingLeft()
}

// A leader that was stopped believes for a moment that it is the leader still, and has the lock of an owner that lost
// it meanwhile. It answers reads, but proves nothing.
func TestVerifyIsNotFooledByAnOldLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	ctx := t.Context()
	opened, err := config.Open(ctx, c.url()) // creates the bucket
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	c.within("a lock", func(ctx context.Context) error {
		lease, err := opened.Lock(ctx, "k")
		if err != nil {
			return err
		}
		return lease.Unlock(ctx)
	})
	old := c.leader()
	holder := natslock.NewBackend(store{Server: old, t: t}.connect(t), natslock.Prefix(prefix))
	req := request("verified", "holder")
	grant, err := holder.Acquire(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	req.Fence, req.Private = grant.Fence, grant.Private
	if err := holder.Verify(ctx, req); err != nil {
		t.Fatalf("the holder: %v", err)
	}
	if _, err := opened.TryLock(ctx, "verified"); !errors.Is(err, locker.ErrHeld) {
		t.Fatalf("another client, before the lock is taken away: %v", err)
	}

	old.Pause()
	inspector, _ := locker.As[inspect.Inspector](opened)
	for end := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
		_, err := inspector.ForceRelease(ctx, "verified", "")
		if err == nil || errors.Is(err, locker.ErrNotHeld) { // the answer to an earlier call was lost
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the lock is not taken away: %v", err)
		}
	}
	next, err := opened.Lock(ctx, "verified")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		asked <- holder.Verify(ctx, req) // waits in the old leader's socket
	}()
	contention.Rest(ctx, nil, 200*time.Millisecond)
	old.Resume()
	if err := <-asked; err == nil {
		t.Errorf("Verify of a lock that was taken away: no error, and the next owner has token %d", next.Fence())
	}
}
