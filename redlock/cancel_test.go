package redlock_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/wire"
)

// ofKey counts the commands of one key with g and lets f decide about the n-th and all later ones.
func ofKey(key string, g *gate, f func(n int) fault.Action) func(fault.Request) fault.Action {
	return func(q fault.Request) fault.Action {
		if steps := wire.Steps(q.Args); len(steps) == 0 || steps[0].Lock != "lock:"+key {
			return fault.Pass
		}
		return f(g.next())
	}
}

// The context ends at the n-th message of an acquisition with raises and its release, for n = 1, 2, … until there
// is no n-th message. No key is left, although keys would live for minutes. goleak checks that no goroutine is left
// either.
func TestContextEndsAtEachMessage(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]fault.Action{
		"messages pass": fault.Pass, "it and all later ones land late": fault.Hold, "answers come late": fault.HoldReply,
	} {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				r := newRig(t, driver, 5, longTimeout)
				steps := 0
				for n := 1; ; n++ {
					if n > 40 {
						t.Fatal("the sweep does not end")
					}
					key := fmt.Sprint("k", n)
					r.diverge(t, key)
					ctx, cancel := context.WithCancel(t.Context())
					var g gate
					r.handle(ofKey(key, &g, func(i int) fault.Action {
						switch {
						case i == n && action == fault.HoldReply:
							time.AfterFunc(2*time.Millisecond, cancel) // executed by then
						case i == n:
							cancel()
						case i < n:
							return fault.Pass
						}
						return action
					}))
					start := time.Now()
					lease, err := r.client.Lock(ctx, key, locker.TTL(longTTL))
					if err == nil {
						err = lease.Unlock(ctx)
					} else if ctx.Err() != nil {
						wantErr(t, err, context.Canceled, locker.ErrNoQuorum, locker.ErrUnavailable)
					}
					if took := time.Since(start); took > longTimeout/2 {
						t.Errorf("n = %d: took %v", n, took)
					}
					cancel()
					reached := g.seen() >= n
					r.handle(nil)
					r.release()
					r.wantNoLocks(t)
					if !reached {
						if err != nil {
							t.Errorf("without a fault: %v", err)
						}
						break
					}
					steps = n
				}
				if raises := r.count(isRaise); raises == 0 || steps < 8 {
					t.Errorf("%d steps, %d raises: the sweep misses something", steps, raises)
				}
			})
		})
	}
}

// The n-th message of an acquisition and its release meets a fault. Nothing is left behind, and one fault of five does
// not prevent a lock. What follows at once on a grant by three nodes, a second round or the release, may need all
// three; see TestOneNodeFailsInTheSecondRound and TestOneNodeFailsBeforeUnlock.
func TestFaultAtEachMessage(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		sideBySide(t, []string{"one round", "two rounds"}, func(t *testing.T, rounds string) {
			loud, deaf := newRig(t, driver, 5, longTimeout), (*rig)(nil)
			actions := map[string]fault.Action{
				"cut before": fault.CutBefore, "cut after": fault.CutAfter, "duplicated": fault.Duplicate,
				"dropped": fault.Drop, "answer dropped": fault.DropReply, "late": fault.Delay(50 * time.Millisecond),
			}
			for _, name := range short.Part(t, 1, slices.Sorted(maps.Keys(actions))) {
				once := driver == "goredis" || testing.Short() // there is no other driver, then
				if _, all := measuring(0); !all && strings.HasSuffix(name, "dropped") && (rounds == "one round" || !once) {
					continue // silence takes long
				}
				r := loud
				if strings.HasSuffix(name, "dropped") {
					if deaf == nil {
						deaf = newRig(t, driver, 5, 300*time.Millisecond)
					}
					r = deaf
				}
				t.Run(name, func(t *testing.T) { r.sweep(t, name, actions[name], rounds == "two rounds") })
			}
		})
	})
}

func (r *rig) sweep(t *testing.T, name string, action fault.Action, raising bool) {
	steps := 0
	for n := 1; ; n++ {
		if n > 40 {
			t.Fatal("the sweep does not end")
		}
		key := fmt.Sprint(name, n)
		if raising {
			r.diverge(t, key)
		}
		var g gate
		r.handle(ofKey(key, &g, func(i int) fault.Action {
			if i == n {
				return action
			}
			return fault.Pass
		}))
		raises := r.count(isRaise)
		lease, err := r.client.TryLock(t.Context(), key, locker.TTL(longTTL))
		what := "lock"
		raised := r.count(isRaise) > raises // also without being made to, when the nodes' clocks pass into another quantum
		if err == nil {
			err, what = lease.Unlock(t.Context()), "unlock"
		}
		lossy, silent := name != "duplicated" && name != "late", strings.HasSuffix(name, "dropped")
		switch {
		case err == nil:
		// A silent connection is noticed by a timeout. It is so short that other commands may exceed it, too.
		case lossy && (raised || what == "unlock" || silent):
			wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
		default:
			t.Errorf("n = %d: %s: %v", n, what, err)
		}
		r.wantNoLocks(t)
		r.handle(nil)
		if g.seen() < n {
			break
		}
		steps = n
		r.wantAll(t)
	}
	if steps < 6 {
		t.Errorf("only %d steps", steps)
	}
}

// wantAll waits until all nodes serve the client: a connection that went silent is given up after a while.
func (r *rig) wantAll(t *testing.T) {
	t.Helper()
	tries := 0
	eventually(t, time.Minute, "all nodes grant", func() bool {
		lease, err := r.client.TryLock(t.Context(), "probe", locker.TTL(longTTL))
		if err != nil {
			return false
		}
		tries++
		all := within(time.Duration(min(tries, 100))*10*time.Millisecond,
			func() bool { return len(r.locks(t)) == len(r.cluster) })
		_ = lease.Unlock(t.Context())
		r.wantNoLocks(t)
		return all
	})
}

// Three of five nodes grant first, two of them have to raise, and one of these two fails. Four nodes are in order, and
// the last two to grant stand in.
func TestOneNodeFailsInTheSecondRound(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]fault.Action{"cut": fault.CutBefore, "hung": fault.Drop} {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				r := newRig(t, driver, 5, 5*time.Second)
				for i := range 2 {
					key := fmt.Sprint("k", i)
					r.cluster[:3].diverge(t, key)
					var g gate
					for n, p := range r.proxies {
						p.Handle(func(q fault.Request) fault.Action {
							switch {
							case n >= 3 && isAcquire(q.Args): // not before the others, unless one of them is still silent
								within(time.Second, func() bool { return g.seen() > 0 })
							case isRaise(q.Args) && g.next() == 1:
								return action
							}
							return fault.Pass
						})
					}
					lease, err := r.client.Lock(t.Context(), key, locker.TTL(longTTL))
					r.handle(nil)
					if err != nil {
						t.Errorf("Lock: %v", err)
						continue
					}
					if g.seen() == 0 {
						t.Error("nothing was raised")
					}
					_ = lease.Unlock(t.Context())
				}
				r.wantNoLocks(t)
			})
		})
	}
}

// Two of five grants are in flight when the lock is released, and one of the other three nodes fails. Four nodes are in
// order, and when the two have answered, four have released.
func TestOneNodeFailsBeforeUnlock(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		r := newRig(t, driver, 5, 2*time.Second)
		for i, p := range r.proxies {
			var g gate
			p.Handle(func(q fault.Request) fault.Action {
				switch {
				case i >= 3 && isAcquire(q.Args) && g.next() == 1:
					return fault.Delay(100 * time.Millisecond)
				case i == 0 && isRelease(q.Args) && g.next() == 1:
					return fault.CutBefore
				}
				return fault.Pass
			})
		}
		if err := tryCycle(t.Context(), r.client, "k"); err != nil {
			t.Error(err)
		}
		r.wantNoLocks(t)
	})
}
