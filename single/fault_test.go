package single_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/single"
)

// An orphan would live for ttl; everything else is over much sooner.
const ttl = 5 * time.Minute

func isClaim(r fault.Request) bool { return wire.Calls(r.Args, "claim") }

// nth applies action to the n-th request that matches.
func nth(n int, action fault.Action, matches func(fault.Request) bool) func(fault.Request) fault.Action {
	count := 0
	return func(r fault.Request) fault.Action {
		if matches(r) {
			if count++; count == n {
				return action
			}
		}
		return fault.Pass
	}
}

// rig is a client whose commands pass a proxy.
type rig struct {
	server *redistest.Server
	proxy  *fault.Proxy
	client *locker.Client
}

func newRig(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) *rig {
	s := redistest.Start(t)
	p := fault.New(t, s.Addr())
	r := &rig{s, p, single.New(build(t, p.Addr()), single.Name(s.Addr()), single.Timeout(time.Second))}
	closing(t, r.client)
	// once without a fault, so that the server knows the scripts and connections exist
	eventually(t, 30*time.Second, "a lock without a fault", func() bool { // a machine may stall for the time-out
		l, err := r.client.TryLock(t.Context(), "k", locker.TTL(ttl))
		return err == nil && l.Unlock(t.Context()) == nil
	})
	return r
}

// wantNoKey waits, for much less than ttl, until nothing is left of the lock.
func (r *rig) wantNoKey(t *testing.T) {
	t.Helper()
	const limit = 30 * time.Second // a rueidis client with default options keeps a silent connection for 10 s
	eventually(t, limit, "the lock is free", func() bool {
		l, err := r.client.TryLock(t.Context(), "k", locker.TTL(ttl))
		// held: the command landed just now; unavailable: a connection that the fault broke was met once more
		return err == nil && l.Unlock(t.Context()) == nil
	})
	eventually(t, limit, "the key is gone", func() bool { return !slices.Contains(r.server.Keys(t, "*"), "lock:k") })
}

// The n-th command of lock and unlock fails, for n = 1, 2, … until there is no n-th: nothing may stay behind.
func TestSweepOverFailingCommands(t *testing.T) {
	for name, action := range map[string]fault.Action{
		"cut before": fault.CutBefore, "cut after": fault.CutAfter, "duplicated": fault.Duplicate, "dropped": fault.Drop,
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				r := newRig(t, build)
				isScript := fault.Named("EVALSHA", "EVAL")
				for n := 1; ; n++ {
					if n > 10 {
						t.Fatal("the sweep does not end")
					}
					before := r.proxy.Count(isScript)
					r.proxy.Handle(nth(n, action, isScript))
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					l, err := r.client.Lock(ctx, "k", locker.TTL(ttl))
					if err == nil {
						err = l.Unlock(ctx)
					}
					// The lock is the caller's or free. Nothing else may be said when an answer is lost, or when a command was
					// executed twice.
					if errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrNotHeld) {
						t.Errorf("command %d %s: %v", n, name, err)
					}
					cancel()
					sent := r.proxy.Count(isScript) - before
					r.proxy.Handle(nil)
					r.wantNoKey(t)
					if sent < n {
						break
					}
				}
			})
		})
	}
}

// The promise is 50 ms. A busy machine may break it now and then, a client that waits in a driver breaks it always.
func TestCallerReturnsPromptlyFromAHungServer(t *testing.T) {
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		c := closing(t, single.New(build(t, s.Addr()), single.Timeout(20*time.Second)))
		l, err := c.TryLock(t.Context(), "held", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		s.Pause()
		for what, call := range map[string]func(context.Context) error{
			"lock":    func(ctx context.Context) error { _, err := c.Lock(ctx, "k", locker.TTL(ttl)); return err },
			"trylock": func(ctx context.Context) error { _, err := c.TryLock(ctx, "k", locker.TTL(ttl)); return err },
			"extend":  func(ctx context.Context) error { return l.Extend(ctx) },
		} {
			best := time.Hour
			for try := 0; try < 2 || try < 50 && best > 50*time.Millisecond; try++ {
				const limit = 20 * time.Millisecond
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				if try%2 == 1 { // clients treat the two ends of a context differently
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(limit, cancel)
				}
				err := call(ctx)
				late := time.Since(start) - limit
				if ctx.Err() == nil {
					t.Fatalf("%s: returned %v before its context ended", what, err)
				}
				cancel()
				if !errors.Is(err, locker.ErrUnavailable) && late > 0 && errors.Is(err, ctx.Err()) {
					continue // it ended before anything was sent, on a machine that stalled
				}
				wantErr(t, err, locker.ErrUnavailable, ctx.Err())
				best = min(best, late)
			}
			if best > 50*time.Millisecond {
				t.Errorf("%s: back %v after its context's end, at best", what, best)
			}
		}
		s.Resume()
		eventually(t, 30*time.Second, "the attempts are undone", func() bool {
			return !slices.Contains(s.Keys(t, "*"), "lock:k")
		})
		steady.Unlock(t, l)
	})
}
