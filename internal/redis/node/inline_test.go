package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

// punctualFake keeps to deadlines unasked, if it says so.
type punctualFake struct {
	*fake
	direct bool
}

func (p *punctualFake) Direct() bool { return p.direct }

func punctual(t *testing.T, f func(t *testing.T, d *punctualFake, n *Node)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		d := &punctualFake{&fake{answer: ok}, true}
		n := New(d, Options{Name: "n1", Prefix: "p:", Timeout: timeout})
		f(t, d, n)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// silent answers nothing until the deadline, of which nobody tells it.
func silent(ctx context.Context, _ []drivers.Command) ([]drivers.Reply, error) {
	end, _ := ctx.Deadline()
	time.Sleep(time.Until(end))
	return nil, ctx.Err()
}

var callsOf = map[string]func(context.Context, *Node) error{
	"acquire": func(ctx context.Context, n *Node) error { _, err := n.Acquire(ctx, request("a")); return err },
	"extend":  func(ctx context.Context, n *Node) error { return n.Extend(ctx, request("a")) },
	"release": func(ctx context.Context, n *Node) error { return n.Release(ctx, request("a")) },
}

// A caller that cannot be cancelled waits inside the driver, and costs no goroutine. A caller that can be cancelled
// does not wait there, nor does any caller of a driver that does not keep to deadlines.
func TestWhoCannotLeaveWaitsInTheDriver(t *testing.T) {
	for name, call := range callsOf {
		for _, tt := range []struct {
			name   string
			leaves bool // its context can be cancelled
			direct bool
			inline bool // the driver is called on the caller's goroutine
			told   bool // the driver, by a Done channel
		}{
			{"cannot leave", false, true, true, false},
			{"can leave", true, true, false, false},
			{"driver wants to be told", false, false, false, true},
		} {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				punctual(t, func(t *testing.T, d *punctualFake, n *Node) {
					d.direct = tt.direct
					ctx := context.Background()
					if tt.leaves {
						ctx = t.Context()
					}
					d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
						if inline := bytes.Contains(debug.Stack(),
							[]byte("TestWhoCannotLeaveWaitsInTheDriver.func1.1(")); inline != tt.inline {
							t.Errorf("on the caller's goroutine: %v, want %v\n%s", inline, tt.inline, debug.Stack())
						}
						if end, ok := ctx.Deadline(); !ok || time.Until(end) != timeout {
							t.Errorf("the driver has until %v, want %v", time.Until(end), timeout)
						}
						if (ctx.Done() != nil) != tt.told {
							t.Errorf("the context has a Done channel: %v, want %v", ctx.Done() != nil, tt.told)
						}
						return ok(ctx, cmds)
					})
					if err := call(ctx, n); err != nil {
						t.Error(err)
					}
					d.will(ok)
				})
			})
		}
	}
}

// The promises about promptness do not depend on how a command is sent.
func TestPunctualDriverThatHangs(t *testing.T) {
	for name, call := range callsOf {
		t.Run(name, func(t *testing.T) {
			punctual(t, func(t *testing.T, d *punctualFake, n *Node) {
				d.will(silent)
				start := time.Now()
				if err := call(context.Background(), n); !errors.Is(err, locker.ErrUnavailable) ||
					errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v must match ErrUnavailable and hide the deadline", err)
				}
				if took := time.Since(start); took != timeout {
					t.Errorf("a caller that cannot be cancelled returned after %v, want %v", took, timeout)
				}
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
				start = time.Now()
				if err := call(ctx, n); !errors.Is(err, locker.ErrUnavailable) {
					t.Error(err)
				}
				if took := time.Since(start); took != 100*time.Millisecond {
					t.Errorf("a caller that can be cancelled returned after %v", took)
				}
				d.will(ok)
			})
		})
	}
}

// A TTL shorter than the timeout bounds an acquisition, wherever it waits.
func TestPunctualAcquisitionIsBoundedByItsTTL(t *testing.T) {
	punctual(t, func(t *testing.T, d *punctualFake, n *Node) {
		d.will(silent)
		req := request("a")
		req.TTL = time.Second
		start := time.Now()
		_, err := n.Acquire(context.Background(), req)
		if took := time.Since(start); took != req.TTL || !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("returned %v after %v", err, took)
		}
		d.will(ok)
		time.Sleep(time.Second)
		if got := d.sent("release"); len(got) == 0 || tombstone(got[0]) != "61000" {
			t.Errorf("an attempt whose outcome is unknown was undone by %q", got)
		}
	})
}

// Close waits for those that nobody can wake, but no longer than their time lasts. (In real time: a mutex is what Close
// waits for, and the clock of a bubble stands still meanwhile.)
func TestCloseWaitsForCallersInTheDriver(t *testing.T) {
	d := &punctualFake{&fake{answer: silent}, true}
	n := New(d, Options{Name: "n1", Timeout: 100 * time.Millisecond})
	result := make(chan error, 1)
	go func() {
		_, err := n.Acquire(context.Background(), request("a"))
		result <- err
	}()
	for d.trips() == 0 {
		runtime.Gosched()
	}
	start := time.Now()
	_ = n.Close()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	if err := <-result; !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrClosed) {
		t.Error(err)
	}
	if d.after > 0 {
		t.Errorf("the driver was used %d times after it was closed", d.after)
	}
}

// What they leave behind is undone before the driver is closed, however long Close has waited for them.
func TestCloseUndoesWhatCallersInTheDriverLeave(t *testing.T) {
	t.Parallel()
	d := &punctualFake{&fake{}, true}
	var undone atomic.Bool
	asked := make(chan struct{})
	d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		if kindOf(cmds[0]) == "acquire" {
			close(asked)
			return silent(ctx, cmds)
		}
		time.Sleep(100 * time.Millisecond) // on its way, which Close of a driver may cut off
		undone.Store(!d.isClosed())
		return ok(ctx, cmds)
	})
	n := New(d, Options{Name: "n1", Timeout: 3 * time.Second})
	go n.Acquire(context.Background(), request("a"))
	<-asked
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if !undone.Load() || d.after > 0 {
		t.Errorf("undone before the driver was closed: %v; %d batches after it", undone.Load(), d.after)
	}
}

// noDone is a context that has a deadline, and that nobody may watch.
type noDone struct{ context.Context }

func (noDone) Done() <-chan struct{} { panic("asked for Done") }

// Nothing but time ends the context of a release that has a deadline.
func TestReleaseThatOnlyTimeEnds(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := n.Release(noDone{ctx}, request("a"))
		if took := time.Since(start); took != time.Second || !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("returned %v after %v", err, took)
		}
		close(wake)
	})
}

// So the caller waits for it in the driver, if that keeps to deadlines, although the context has a Done channel.
func TestReleaseThatOnlyTimeEndsIsSentByTheCaller(t *testing.T) {
	punctual(t, func(t *testing.T, d *punctualFake, n *Node) {
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if !bytes.Contains(debug.Stack(), []byte("TestReleaseThatOnlyTimeEndsIsSentByTheCaller.func1(")) {
				t.Errorf("sent by another goroutine\n%s", debug.Stack())
			}
			return ok(ctx, cmds)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.Release(ctx, request("a")); err != nil {
			t.Error(err)
		}
	})
}

// A clean-up that gets its turn only while the node is being closed is interrupted, if the server hangs, when Close has
// waited for long enough, whether it is sent alone or with others.
func TestCloseInterruptsWhatBeganMeanwhile(t *testing.T) {
	for _, keys := range [][]string{{"a"}, {"a", "b"}} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				d := &punctualFake{&fake{}, true}
				n := New(d, Options{Name: "n1", Timeout: timeout})
				d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
					if ctx.Done() == nil {
						return silent(ctx, cmds)
					}
					<-ctx.Done()
					return nil, ctx.Err()
				})
				for range 4 { // all that may be in flight
					go func() { _ = n.Extend(t.Context(), request("a")) }()
				}
				synctest.Wait()
				for _, key := range keys {
					req := request("a")
					req.Key = key
					n.Undo(&req, true)
				}
				time.Sleep(timeout / 2)
				start := time.Now()
				if err := n.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took != timeout {
					t.Errorf("closed after %v, want %v", took, timeout)
				}
				if got := len(d.sent("release")); got != len(keys) {
					t.Errorf("%d clean-ups were sent, want %d", got, len(keys))
				}
			})
		})
	}
}
