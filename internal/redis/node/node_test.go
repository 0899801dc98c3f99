package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
)

func TestCallerLeavesWhenItsContextEnds(t *testing.T) {
	calls := map[string]func(context.Context, *Node) error{
		"acquire": func(ctx context.Context, n *Node) error { _, err := n.Acquire(ctx, request("a")); return err },
		"extend":  func(ctx context.Context, n *Node) error { return n.Extend(ctx, request("a")) },
		"release": func(ctx context.Context, n *Node) error { return n.Release(ctx, request("a")) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake, n *Node) {
				wake := make(chan struct{})
				d.will(until(wake, ok)) // a client that ignores contexts
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				start := time.Now()
				err := call(ctx, n)
				if d := time.Since(start); d != 100*time.Millisecond {
					t.Errorf("returned after %v", d)
				}
				if !errors.Is(err, locker.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) ||
					!strings.Contains(err.Error(), "n1") {
					t.Errorf("%v must name the node, match ErrUnavailable, and leave the context to the Client", err)
				}
				close(wake)
			})
		})
	}
}

func TestCallerWithoutDeadlineIsBoundedByTimeoutAndTTL(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, time.Hour} {
		bubble(t, func(t *testing.T, d *fake, n *Node) {
			wake := make(chan struct{})
			d.will(until(wake, ok))
			req := request("a")
			req.TTL = ttl
			start := time.Now()
			_, err := n.Acquire(t.Context(), req)
			if d := time.Since(start); d != min(ttl, timeout) || !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("TTL %v: returned %v after %v", ttl, err, d)
			}
			close(wake)
		})
	}
}

// What an answer to a release or an extension means, and that it is an answer: nothing goes on in the background.
func TestRepliesSayWhatBecameOfALock(t *testing.T) {
	for reply, want := range map[drivers.Reply]locker.LostReason{
		int64(0): locker.LostGone,
		int64(1): "",
		int64(2): "",                    // deleted by an earlier delivery of the same release: ours to the end
		int64(3): locker.LostSuperseded, // deleted, but somebody else has had it since
		int64(4): locker.LostTakenOver,
	} {
		bubble(t, func(t *testing.T, d *fake, n *Node) {
			d.will(all(reply))
			for what, call := range map[string]func(context.Context, backend.Request) error{
				"Release": n.Release, "Extend": n.Extend,
			} {
				err, lost := call(t.Context(), request("a")), &locker.NotHeldError{}
				if errors.As(err, &lost); (err == nil) != (want == "") || lost.Reason != want {
					t.Errorf("%s, reply %v: got %v, want the reason %q", what, reply, err, want)
				}
			}
			before := len(d.sent("release"))
			time.Sleep(time.Minute)
			if got := len(d.sent("release")) - before; got != 0 {
				t.Errorf("reply %v: %d releases were sent in the background", reply, got)
			}
		})
	}
}

func TestUnknownScriptIsSentInFull(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if cmds[0][0] == "EVALSHA" {
				return all(drivers.ServerError("NOSCRIPT No matching script. Please use EVAL."))(ctx, cmds)
			}
			if cmds[0][0] != "EVAL" || kindOf(cmds[0]) != "acquire" {
				t.Errorf("sent %q", cmds[0][:2])
			}
			return all(granted)(ctx, cmds)
		})
		g, err := n.Acquire(t.Context(), request("a"))
		if err != nil || g.Fence != 7 {
			t.Error(g, err)
		}
		d.will(ok)
		_ = n.Release(t.Context(), request("a"))
	})
}

func TestDriversContextErrorsAreNotTheCallers(t *testing.T) {
	for _, e := range []error{context.Canceled, context.DeadlineExceeded,
		fmt.Errorf("dial: %w", context.DeadlineExceeded)} {
		bubble(t, func(t *testing.T, d *fake, n *Node) {
			d.will(fails(e))
			_, err := n.Acquire(t.Context(), request("a"))
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
				!errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("%v says that the caller's context ended", err)
			}
			if !strings.Contains(err.Error(), e.Error()) {
				t.Errorf("%v hides the reason", err)
			}
			d.will(ok)
		})
	}
}

func TestWrongNumberOfRepliesIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		d.will(func(context.Context, []drivers.Command) ([]drivers.Reply, error) { return nil, nil })
		_, err := n.Acquire(t.Context(), request("a"))
		if !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
		d.will(ok)
	})
}
