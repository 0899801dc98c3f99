package node

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/virtual"
)

// yielding is a driver that lets go of callers that have to leave.
type yielding struct{ *fake }

func (yielding) Direct() bool        { return true }
func (yielding) Interruptible() bool { return true }

func yields(t *testing.T, f func(t *testing.T, d yielding, n *Node)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		d := yielding{&fake{answer: ok}}
		n := New(d, Options{Name: "n1", Prefix: "p:", Timeout: timeout})
		f(t, d, n)
		if got := len(n.queue.inside); got > 0 {
			t.Errorf("%d are said to be in the driver, want none", got)
		}
		d.will(ok)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// brokenOff answers nothing until it is told that the caller leaves, or its deadline has passed, of which nobody tells it.
func brokenOff(ctx context.Context, _ []drivers.Command) ([]drivers.Reply, error) {
	end, _ := ctx.Deadline()
	late := time.NewTimer(time.Until(end))
	defer late.Stop()
	broken := make(chan struct{})
	stop := drivers.OnLeave(ctx, func() { close(broken) })
	select {
	case <-broken:
		return nil, errors.New("the connection was closed")
	case <-late.C:
		if !stop() {
			<-broken
		}
		return nil, context.DeadlineExceeded
	}
}

func onTheCallersGoroutine() bool {
	return bytes.Contains(debug.Stack(), []byte("TestWhoCanBeCalledAwayWaitsInTheDriver.func1.1("))
}

func TestWhoCanBeCalledAwayWaitsInTheDriver(t *testing.T) {
	for name, call := range callsOf {
		t.Run(name, func(t *testing.T) {
			yields(t, func(t *testing.T, d yielding, n *Node) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
					if !onTheCallersGoroutine() {
						t.Errorf("not on the caller's goroutine: %s", debug.Stack())
					}
					if end, quiet := drivers.QuietDeadline(ctx); !quiet || time.Until(end) != timeout {
						t.Errorf("the driver has until %v (%v), want %v", time.Until(end), quiet, timeout)
					}
					if ctx.Err() != nil || ctx.Done() == nil {
						t.Errorf("the context: %v, %v", ctx.Err(), ctx.Done())
					}
					return ok(ctx, cmds)
				})
				for range 3 { // the same context again
					if err := call(ctx, n); err != nil {
						t.Error(err)
					}
				}
				cancel()
				d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
					if onTheCallersGoroutine() {
						t.Errorf("who is about to leave went in: %s", debug.Stack())
					}
					return ok(ctx, cmds)
				})
				_ = call(ctx, n)
				synctest.Wait()
			})
		})
	}
}

// Who is called away leaves at once, and what it leaves behind is undone.
func TestCallersInTheDriverLeave(t *testing.T) {
	for name, call := range callsOf {
		t.Run(name, func(t *testing.T) {
			yields(t, func(t *testing.T, d yielding, n *Node) {
				for _, answer := range []func(context.Context, []drivers.Command) ([]drivers.Reply, error){brokenOff, hangs} {
					d.forgetAll()
					d.will(answer)
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					start := time.Now()
					err := call(ctx, n)
					if took := time.Since(start); took != 100*time.Millisecond {
						t.Errorf("returned after %v", took)
					}
					if !errors.Is(err, locker.ErrUnavailable) || errors.Is(err, context.Canceled) || !errors.Is(err, errNoAnswer) {
						t.Errorf("%v must match ErrUnavailable, say that there was no answer, and hide the driver's context", err)
					}
					d.will(ok)
					synctest.Wait()
					switch got := d.sent(releaseScript); {
					case name == "acquire" && (len(got) != 1 || tombstone(got[0]) != "70000"):
						t.Errorf("an attempt whose outcome is unknown was undone by %q", got)
					case name == "release" && len(got) != 2:
						t.Errorf("a release whose outcome is unknown was followed by %q", got)
					}
					if err := call(t.Context(), n); err != nil {
						t.Errorf("afterwards: %v", err)
					}
				}
			})
		})
	}
}

// The driver keeps to the deadline, of which nobody tells it.
func TestDeadlineOfCallersInTheDriver(t *testing.T) {
	yields(t, func(t *testing.T, d yielding, n *Node) {
		d.will(brokenOff)
		start := time.Now()
		if err := n.Extend(t.Context(), request("a")); !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
		if took := time.Since(start); took != timeout {
			t.Errorf("returned after %v, want %v", took, timeout)
		}
	})
}

// A release goes on for a while when its caller's context has ended, wherever it is waited for.
func TestReleaseLingersInTheDriver(t *testing.T) {
	for _, tt := range []struct{ cancelled, want time.Duration }{
		{time.Nanosecond, 250 * time.Millisecond},
		{100 * time.Millisecond, 250 * time.Millisecond},
		{time.Second, time.Second},
		{time.Hour, 3 * time.Second},
	} {
		t.Run(tt.cancelled.String(), func(t *testing.T) {
			yields(t, func(t *testing.T, d yielding, n *Node) {
				release := func() (time.Duration, error) {
					ctx, cancel := context.WithTimeout(t.Context(), tt.cancelled)
					defer cancel()
					start := time.Now()
					err := n.Release(lingering{ctx, start.Add(250 * time.Millisecond), start.Add(3 * time.Second)}, request("a"))
					return time.Since(start), err
				}
				d.will(brokenOff)
				if took, err := release(); took != tt.want || !errors.Is(err, locker.ErrUnavailable) {
					t.Errorf("returned %v after %v, want after %v", err, took, tt.want)
				}
				d.will(ok)
				synctest.Wait()
				d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
					time.Sleep(200 * time.Millisecond)
					if ctx.Err() != nil {
						t.Errorf("called away after 200 ms: %v", ctx.Err())
					}
					return ok(ctx, cmds)
				})
				if took, err := release(); took != 200*time.Millisecond || err != nil {
					t.Errorf("an answer in time: %v after %v", err, took)
				}
			})
		})
	}
}

// Close calls everybody away who is in the driver, and has what they leave behind undone before the driver is closed.
func TestCloseCallsCallersAway(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := yielding{&fake{answer: brokenOff}}
		n := New(d, Options{Timeout: timeout})
		var callers sync.WaitGroup
		for range maxLanes {
			callers.Go(func() {
				if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrClosed) {
					t.Errorf("%v, want ErrClosed", err)
				}
			})
		}
		synctest.Wait()
		if got := d.trips(); got != maxLanes {
			t.Fatalf("%d are in the driver, want %d", got, maxLanes)
		}
		d.will(ok)
		start := time.Now()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		callers.Wait()
		if took := time.Since(start); took != 0 {
			t.Errorf("Close took %v", took)
		}
		if got := len(d.sent(releaseScript)); got != maxLanes || d.after > 0 {
			t.Errorf("%d attempts were undone, want %d; %d batches after the driver was closed", got, maxLanes, d.after)
		}
	})
}

// Whoever comes when the others have been called away does not go in: nobody would call it.
func TestNobodyGoesInAfterTheCall(t *testing.T) {
	yields(t, func(t *testing.T, d yielding, n *Node) {
		n.queue.recallAll()
		if err := n.Extend(t.Context(), request("a")); !errors.Is(err, locker.ErrClosed) || d.trips() > 0 {
			t.Errorf("%v, and %d batches, want ErrClosed and none", err, d.trips())
		}
	})
}

// What calls one caller away, however late, does not call the next.
func TestNextCallerIsNotCalledAway(t *testing.T) {
	d := yielding{&fake{answer: ok}}
	n := New(d, Options{Timeout: timeout})
	inside := make(chan struct{})
	for range 2000 {
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			inside <- struct{}{}
			return ok(ctx, cmds)
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-inside
			cancel() // while it returns
		}()
		_ = n.Extend(ctx, request("a"))
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			stop := drivers.OnLeave(ctx, func() { t.Error("called away") })
			for range 20 {
				if ctx.Err() != nil {
					t.Error(ctx.Err())
				}
			}
			stop()
			return ok(ctx, cmds)
		})
		if err := n.Extend(t.Context(), request("a")); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// A script that has to be sent in full by somebody who has left meanwhile is not sent.
func TestCalledAwayBetweenTwoExchanges(t *testing.T) {
	yields(t, func(t *testing.T, d yielding, n *Node) {
		ctx, cancel := context.WithCancel(t.Context())
		told := false
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if cmds[0][0] == "EVALSHA" {
				cancel()
				synctest.Wait()
				return all(drivers.ServerError("NOSCRIPT No matching script. Please use EVAL."))(ctx, cmds)
			}
			called := make(chan struct{})
			stop := drivers.OnLeave(ctx, func() { close(called) })
			<-called
			told = !stop()
			return nil, drivers.NotSent(ctx.Err())
		})
		if _, err := n.Acquire(ctx, request("a")); !errors.Is(err, locker.ErrUnavailable) || !told {
			t.Errorf("%v; the driver was told: %v", err, told)
		}
		d.will(ok)
		synctest.Wait()
		if got := d.sent(releaseScript); len(got) > 0 {
			t.Errorf("nothing was executed, and it was undone by %q", got)
		}
	})
}

// brokenOffUnsent is brokenOff by a driver that had to dial first.
func brokenOffUnsent(ctx context.Context, _ []drivers.Command) ([]drivers.Reply, error) {
	<-ctx.Done()
	return nil, drivers.NotSent(&net.OpError{Op: "dial", Err: ctx.Err()})
}

// Close says why its callers had to leave, whether or not anything was sent.
func TestCloseTellsCallersThatSentNothing(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := yielding{&fake{answer: brokenOffUnsent}}
		n := New(d, Options{Timeout: timeout})
		left := make(chan error, 1)
		go func() { left <- n.Extend(t.Context(), request("a")) }()
		synctest.Wait()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if err := <-left; !errors.Is(err, locker.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
	})
}

// A caller that leaves while the driver dials for it does not make the node look as if it could not be reached.
func TestWhoLeavesADialSpoilsItForNobody(t *testing.T) {
	yields(t, func(t *testing.T, d yielding, n *Node) {
		d.will(brokenOffUnsent)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := n.Extend(ctx, request("a")); !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, drivers.ErrNotSent) {
			t.Errorf("%v must match ErrUnavailable and ErrNotSent", err)
		}
		d.will(ok)
		if err := n.Extend(t.Context(), request("a")); err != nil {
			t.Error(err)
		}
	})
}

// What a driver derives from the context of an exchange, to dial, may be in use for longer than that.
func TestContextOutlivesItsExchange(t *testing.T) {
	type key struct{}
	yields(t, func(t *testing.T, d yielding, n *Node) {
		var kept []context.Context
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			derived, cancel := context.WithCancel(ctx)
			t.Cleanup(cancel)
			kept = append(kept, derived)
			return ok(ctx, cmds)
		})
		for i := range 3 {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, i))
			if err := n.Extend(ctx, request("a")); err != nil {
				t.Error(err)
			}
			cancel()
		}
		for i, ctx := range kept {
			if got := ctx.Value(key{}); got != i {
				t.Errorf("the context of caller %d has the value %v", i, got)
			}
		}
		d.will(ok)
	})
}
