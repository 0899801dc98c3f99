package nats_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/nats"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/short"
)

// ledger checks that at most one holder is valid at a time, and that tokens grow.
type ledger struct {
	t  testing.TB
	mu sync.Mutex

	holder locker.Lease
	last   uint64
	grants int
	fault  error // the last one that was seen
}

func (l *ledger) granted(lease locker.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder != nil && l.holder.Err() == nil {
		l.t.Errorf("token %d was granted while the lease with token %d is valid", lease.Fence(), l.holder.Fence())
	}
	if lease.Fence() <= l.last {
		l.t.Errorf("token %d after token %d", lease.Fence(), l.last)
	}
	l.holder, l.last = lease, max(l.last, lease.Fence())
	l.grants++
}

// work takes the lock again and again until ctx ends. Faults of the store are tolerated, and losses are not reported:
// the ledger shows what matters.
func (l *ledger) work(ctx context.Context, c *config.Opened) {
	for ctx.Err() == nil {
		lease, err := c.Lock(ctx, "k")
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, locker.ErrUnavailable) {
				l.t.Errorf("Lock: %v", err)
			}
			l.mu.Lock()
			l.fault = err
			l.mu.Unlock()
			rest(ctx, 20*time.Millisecond)
			continue
		}
		l.granted(lease)
		rest(ctx, 5*time.Millisecond)
		_ = locker.Verify(ctx, lease) // an error is about the fault
		_ = lease.Unlock(ctx)
	}
}

// once waits until the lock can be acquired.
func (l *ledger) once(ctx context.Context, c *config.Opened) {
	ctx, cancel := context.WithCancel(ctx)
	var worker sync.WaitGroup
	defer worker.Wait()
	defer cancel()
	worker.Go(func() { l.work(ctx, c) })
	l.progress(1)
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// standstill is how long a cluster may take to go on after a fault. It takes seconds, and minutes if the machine is
// busy.
const standstill = 3 * time.Minute

// progress waits until there were n more grants.
func (l *ledger) progress(n int) {
	l.t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.grants
	}
	want := count() + n
	for end := time.Now().Add(standstill); count() < want; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.t.Fatalf("%d grants within %v, expected %d: %v", l.grants-want+n, standstill, n, l.fault)
		}
	}
}

// While clients contend for a lock, the leader of the bucket fails again and again. Nobody holds the lock twice, tokens
// grow, and the clients go on.
func TestFaultsOfALeader(t *testing.T) {
	faults := map[string]func(c cluster, l *ledger){
		"killed": func(c cluster, l *ledger) {
			s := c.leader()
			s.Kill()
			l.progress(5)
			s.Restart()
		},
		// When it goes on, it believes for a moment that it is the leader still.
		"stopped": func(c cluster, l *ledger) {
			s := c.leader()
			s.Pause()
			defer s.Resume()
			l.progress(5)
		},
		"cut off from its clients": func(c cluster, l *ledger) {
			up := c.leader().Down()
			defer up()
			l.progress(5)
		},
		"moved": func(c cluster, _ *ledger) {
			_ = c.leader()
			_, err := c.js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN.KV_"+nats.DefaultBucket, nil, 5*time.Second)
			if err != nil {
				c.t.Logf("step down: %v", err)
			}
		},
	}
	const rounds = 2
	for _, name := range short.Part(t, 1, []string{"killed", "stopped", "cut off from its clients", "moved"}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, l := startCluster(t), &ledger{t: t}
			ctx, cancel := context.WithCancel(t.Context())
			var workers sync.WaitGroup
			defer workers.Wait()
			defer cancel()
			for range 4 {
				opened, err := config.Open(ctx, c.url())
				if err != nil {
					t.Fatal(err)
				}
				workers.Go(func() {
					defer opened.Close()
					l.work(ctx, opened)
				})
			}
			l.progress(5)
			for range len(short.Part(t, 1, make([]int, rounds))) {
				faults[name](c, l)
				l.progress(5)
			}
		})
	}
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
	(&ledger{t: t}).once(ctx, opened)
	old := c.leader()
	holder := nats.NewBackend(store{Server: old, t: t}.connect(t), nats.Prefix(prefix))
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
	rest(ctx, 200*time.Millisecond)
	old.Resume()
	if err := <-asked; err == nil {
		t.Errorf("Verify of a lock that was taken away: no error, and the next owner has token %d", next.Fence())
	}
}
