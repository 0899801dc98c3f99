package locker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/lockertrace"
)

// reentrant is a store whose code calls the lease that it belongs to when the lease ends, as hooks do.
type reentrant struct {
	*store
	c *circle
}

func (r reentrant) NotifyLoss(backend.Request, func(error)) (stop func()) { return r.c.callAll }

// circle has a lease whose hooks call all that a program has: the Election, the lease and the Locker.
type circle struct {
	client   *locker.Client
	election *election.Election
	held     context.Context // of the lease
	lease    locker.Lease
	calls    atomic.Int64
}

// callAll calls what a hook may call. It is a hook itself, so the number of calls is bounded.
func (c *circle) callAll() {
	if c.lease == nil || c.calls.Add(1) > 20 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = c.election.Leading()
	_, _, _, _ = c.held.Err(), c.lease.Err(), c.lease.Until(), c.lease.Done()
	_, _, _ = c.lease.Extend(ctx), c.lease.Extend(ctx, locker.TTL(time.Second)), locker.Verify(ctx, c.lease)
	_ = c.lease.Unlock(ctx)
	_, _ = c.client.TryLock(ctx, "k")
	_, _ = c.client.TryLock(c.held, "another")
	_, _ = c.client.Inspect(ctx, "k")
}

// within fails the test if f does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal(what + " hangs")
	}
}

// Whoever notices that the lease of a leader has ended, the hooks may ask the Election, the lease and the Locker.
func TestHooksOfALossMayCallEverything(t *testing.T) {
	for name, notice := range map[string]func(c *circle){
		"Leading":           func(c *circle) { c.election.Leading() },
		"Err":               func(c *circle) { _ = c.lease.Err() },
		"Until and Done":    func(c *circle) { _, _, _ = c.lease.Until(), c.lease.Done(), c.lease.Err() },
		"the context of Do": func(c *circle) { _ = c.held.Err() },
		"Extend":            func(c *circle) { _ = c.lease.Extend(c.held) },
		"Verify":            func(c *circle) { _ = locker.Verify(c.held, c.lease) },
		"Unlock":            func(c *circle) { _ = c.lease.Unlock(c.held) },
		"Resign":            func(c *circle) { _ = c.election.Resign(c.held) },
		"Close":             func(c *circle) { _ = c.client.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			sleep := locker.SleepMachine(t)
			c := &circle{}
			c.client = locker.NewClient(reentrant{newStore(), c})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ctx = lockertrace.With(ctx, &lockertrace.Trace{
				Attempted: func(lockertrace.Attempt) { c.callAll() },
				Lost:      func(error) { c.callAll() },
			})
			elected := make(chan struct{})
			c.election = election.New(c.client, "k", election.Config{
				OnElected: func(ctx context.Context, term election.Term) error {
					if c.lease == nil {
						c.held, c.lease = ctx, term.Lease
						close(elected)
					}
					<-ctx.Done()
					return nil
				},
				OnError: func(error) { c.callAll() },
				Options: []locker.Option{locker.TTL(time.Minute), locker.NoRenewal()},
			})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = c.election.Run(ctx)
			}()
			<-elected
			sleep(2 * time.Minute)
			within(t, name, func() { notice(c) })
			within(t, "Leading", func() {
				if _, leads := c.election.Leading(); leads {
					t.Error("the lease has ended, and the candidate leads")
				}
			})
			cancel()
			within(t, "Run", func() { <-ended })
			within(t, "Close", func() { _ = c.client.Close() })
			if c.calls.Load() == 0 {
				t.Error("no hook was called")
			}
		})
	}
}

// The end of a lease cancels its requests that are under way. The context of such a request may be that of Do, which
// asks the lease.
func TestRequestUnderWayWithTheContextOfDoEndsWithTheLease(t *testing.T) {
	s := newStore()
	c := locker.NewClient(s)
	s.on("extend", hang)
	within(t, "Do", func() {
		err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
			l, _ := locker.LeaseFrom(ctx)
			wantErr(t, l.Extend(ctx), locker.ErrLost, context.Canceled)
			return nil
		}, locker.TTL(100*time.Millisecond), locker.NoRenewal())
		lostBecause(t, err, locker.LostExpired)
	})
	_ = c.Close()
}
