package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
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
				if !errors.Is(err, locker.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "n1") {
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

// The wish to leave and the reply may come in either order; in each, nothing may stay behind.
func TestAttemptWithUnknownOutcomeIsUndone(t *testing.T) {
	late := func(reply drivers.Reply) func(t *testing.T, d *fake, n *Node) {
		return func(t *testing.T, d *fake, n *Node) {
			wake := make(chan struct{})
			var first atomic.Bool
			d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
				if first.CompareAndSwap(false, true) {
					<-wake
				}
				if wire.Acquires(cmds[0]) {
					return all(reply)(ctx, cmds)
				}
				return ok(ctx, cmds)
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if _, err := n.Acquire(ctx, request("a")); err == nil {
				t.Fatal("no error")
			}
			synctest.Wait()
			undone := d.sent("release")
			if len(undone) != 1 {
				t.Fatalf("%d releases were sent when the caller left, want 1 at once", len(undone))
			}
			if tombstone := tombstone(undone[0]); tombstone != "70000" {
				t.Errorf("the release leaves a tombstone for %s ms, want TTL + 1 min", tombstone)
			}
			time.Sleep(2 * time.Second)
			close(wake)
			synctest.Wait()
		}
	}
	tests := []struct {
		name     string
		do       func(t *testing.T, d *fake, n *Node)
		releases int
	}{
		{"granted late", late(granted), 2},
		{"held, late", late(held), 1},
		{"found its tombstone", late([]drivers.Reply{int64(-1)}), 1},
		{"connection broke", func(t *testing.T, d *fake, n *Node) {
			d.will(fails(io.EOF))
			_, err := n.Acquire(t.Context(), request("a"))
			if !errors.Is(err, io.EOF) || !errors.Is(err, locker.ErrUnavailable) {
				t.Errorf("%v must match ErrUnavailable and the driver's error", err)
			}
			d.forgetAll() // the clean-up may have failed already
			d.will(ok)
			time.Sleep(2 * time.Second)
		}, 1},
		{"certainly not sent", func(t *testing.T, d *fake, n *Node) {
			d.will(fails(drivers.NotSent(io.EOF)))
			if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrUnavailable) {
				t.Error(err)
			}
		}, 0},
		{"refused", func(t *testing.T, d *fake, n *Node) {
			d.will(all(drivers.ServerError("READONLY You can't write against a read only replica.")))
			_, err := n.Acquire(t.Context(), request("a"))
			var e drivers.ServerError
			if !errors.Is(err, locker.ErrUnavailable) || !errors.As(err, &e) || e.Code() != "READONLY" {
				t.Errorf("%v does not show the refusal", err)
			}
		}, 0},
		{"stopped in the middle", func(t *testing.T, d *fake, n *Node) {
			d.will(all(drivers.ServerError("NOPERM this user has no permissions to run the 'set' command")))
			_, _ = n.Acquire(t.Context(), request("a"))
			d.will(ok)
		}, 1},
		{"nonsense", func(t *testing.T, d *fake, n *Node) {
			d.will(all("secret"))
			_, err := n.Acquire(t.Context(), request("a"))
			if !errors.Is(err, locker.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
				t.Error(err)
			}
			d.forgetAll()
			d.will(ok)
			time.Sleep(2 * time.Second)
		}, 1},
		{"held", func(t *testing.T, d *fake, n *Node) {
			d.will(all(held))
			_, err := n.Acquire(t.Context(), request("a"))
			var held *locker.HeldError
			if !errors.As(err, &held) || held.Remaining != 500*time.Millisecond || errors.Is(err, locker.ErrUnavailable) {
				t.Error(err)
			}
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake, n *Node) {
				tt.do(t, d, n)
				time.Sleep(time.Second)
				synctest.Wait()
				got := d.sent("release")
				if len(got) != tt.releases {
					t.Errorf("%d releases were sent, want %d: %q", len(got), tt.releases, got)
				}
				for _, cmd := range got {
					if cmd[3] != "p:k" || wire.Token(cmd[5]) != "a" {
						t.Errorf("wrong release: %q", cmd)
					}
				}
			})
		})
	}
}

func TestCleanupIsRetriedUntilAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		d.will(fails(io.EOF))
		_, _ = n.Acquire(t.Context(), request("a"))
		time.Sleep(30 * time.Second)
		tries := len(d.sent("release"))
		if tries < 25 || tries > 80 {
			t.Errorf("%d tries in 30 s, want about one a second", tries)
		}
		d.will(all(drivers.ServerError("LOADING Redis is loading the dataset in memory")))
		time.Sleep(5 * time.Second)
		d.forgetAll()
		d.will(ok)
		time.Sleep(time.Minute)
		if n := len(d.sent("release")); n != 1 {
			t.Errorf("%d releases after the server was back, want 1", n)
		}
	})
}

func TestCleanupGivesUpInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		d.will(fails(io.EOF))
		_, _ = n.Acquire(t.Context(), request("a"))
		time.Sleep(request("").TTL + cleanupLife + cleanupMaxPause)
		d.forgetAll()
		time.Sleep(time.Hour)
		if n := len(d.sent("release")); n != 0 {
			t.Errorf("%d releases after the end", n)
		}
	})
}

// What an answer to a release means, and that it is an answer: nothing goes on in the background.
func TestReleaseReplies(t *testing.T) {
	for reply, want := range map[drivers.Reply]error{
		int64(0): locker.ErrNotHeld,
		int64(1): nil,
		int64(2): nil,               // deleted by an earlier delivery of the same release: ours to the end
		int64(3): locker.ErrNotHeld, // deleted, but somebody else has had it since
		int64(4): locker.ErrNotHeld, // somebody else's
	} {
		bubble(t, func(t *testing.T, d *fake, n *Node) {
			d.will(all(reply))
			if err := n.Release(t.Context(), request("a")); !errors.Is(err, want) {
				t.Errorf("reply %v: got %v, want %v", reply, err, want)
			}
			time.Sleep(time.Minute)
			if got := len(d.sent("release")); got != 1 {
				t.Errorf("reply %v: %d releases were sent", reply, got)
			}
		})
	}
}

func TestUnansweredReleaseGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		d.will(hangs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.Release(ctx, request("a")); !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
		d.will(ok)
		d.forgetAll()
		time.Sleep(2 * timeout)
		cmds := d.sent("release")
		if len(cmds) != 1 || tombstone(cmds[0]) != "0" {
			t.Errorf("releases after the server was back: %q, want one without tombstone", cmds)
		}
	})
}

func TestCleanupsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		n.cleaner.mu.Lock()
		n.cleaner.todo = make([]cleanup, maxCleanups) // expired, so that they are dropped after
		n.cleaner.mu.Unlock()
		_, err := n.Acquire(t.Context(), request("a"))
		if !errors.Is(err, locker.ErrUnavailable) || len(d.sent("acquire")) != 0 {
			t.Errorf("got %v, and %d attempts were sent", err, len(d.sent("acquire")))
		}
	})
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
	for _, e := range []error{context.Canceled, context.DeadlineExceeded, fmt.Errorf("dial: %w", context.DeadlineExceeded)} {
		bubble(t, func(t *testing.T, d *fake, n *Node) {
			d.will(fails(e))
			_, err := n.Acquire(t.Context(), request("a"))
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, locker.ErrUnavailable) {
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

// Each step of Close waits for something that may still have to be undone. In each case a clean-up becomes due at the
// last moment at which it still can be sent, and has been answered when Close returns.
func TestCloseUndoesWhatIsStillDue(t *testing.T) {
	tests := map[string]struct {
		// due brings about something to undo. What it returns, if anything, goes on while Close is under way.
		due  func(t *testing.T, d *fake, n *Node) (meanwhile func())
		want []string // life of the tombstones of the releases that are answered while the node is closed
	}{
		"a call that has not left": {func(_ *testing.T, d *fake, n *Node) func() {
			n.calls.Enter() // as each call does
			return func() {
				for !d.isClosed() && n.calls.over.Load() == nil { // until Close waits for this call, or has failed to
					runtime.Gosched()
				}
				req := request("a")
				n.Undo(&req, false)
				n.calls.Leave()
			}
		}, []string{"70000"}},
		"a grant that comes late": {func(t *testing.T, d *fake, n *Node) func() {
			wake := make(chan struct{})
			d.will(until(wake, ok))
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				_, _ = n.Acquire(ctx, request("a"))
			}()
			synctest.Wait()
			d.will(ok)
			cancel()
			<-left
			synctest.Wait() // its release has been answered already
			d.forgetAll()
			return func() {
				synctest.Wait()
				close(wake)
			}
		}, []string{"0"}},
		"a clean-up that failed before": {func(t *testing.T, d *fake, n *Node) func() {
			d.will(fails(io.EOF))
			_, _ = n.Acquire(t.Context(), request("a"))
			time.Sleep(10 * time.Second) // the pauses between tries are long by now
			synctest.Wait()
			d.forgetAll()
			return nil
		}, []string{"70000"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				d := &fake{answer: ok}
				n := New(d, Options{Name: "n1", Timeout: timeout})
				meanwhile := tt.due(t, d, n)
				var answered []string
				d.will(slowly(time.Second, func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
					for _, cmd := range cmds {
						if kindOf(cmd) == "release" {
							answered = append(answered, tombstone(cmd))
						}
					}
					return ok(ctx, cmds)
				}))
				closed := make(chan error, 1)
				go func() { closed <- n.Close() }()
				if meanwhile != nil {
					meanwhile()
				}
				if err := <-closed; err != nil {
					t.Error(err)
				}
				if !slices.Equal(answered, tt.want) {
					t.Errorf("releases with tombstones for %q ms were answered, want %q", answered, tt.want)
				}
			})
		})
	}
}

// While Close waits for what is under way, and after it, nothing new is sent.
func TestNothingIsSentOnceClosed(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		wake := make(chan struct{})
		d := &fake{answer: until(wake, ok)}
		n := New(d, Options{Name: "n1", Timeout: timeout})
		go func() { _, _ = n.Acquire(context.Background(), request("under way")) }()
		synctest.Wait()
		d.will(ok)
		closed := make(chan error)
		go func() { closed <- n.Close() }()
		synctest.Wait()
		d.forgetAll()
		try := func(when string) {
			_, err := n.Acquire(t.Context(), request("a"))
			for call, err := range map[string]error{
				"acquire": err, "extend": n.Extend(t.Context(), request("a")), "release": n.Release(t.Context(), request("a")),
			} {
				if !errors.Is(err, locker.ErrClosed) {
					t.Errorf("%s, %s: %v", when, call, err)
				}
			}
			if got := len(d.sent("acquire")) + len(d.sent("extend")); got > 0 {
				t.Errorf("%s: %d commands were sent", when, got)
			}
		}
		try("while it is closed")
		time.Sleep(timeout)
		if err := <-closed; err == nil {
			t.Error("Close is silent about a command in flight")
		}
		try("after that")
		close(wake) // granted, and to be undone: too late
		synctest.Wait()
		if d.after > 0 {
			t.Errorf("the driver was used %d times after it was closed", d.after)
		}
	})
}

func TestClose(t *testing.T) {
	t.Run("interrupts callers and undoes their attempts", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			wake := make(chan struct{})
			d := &fake{answer: until(wake, ok)}
			n := New(d, Options{Name: "n1", Timeout: timeout})
			result := make(chan error)
			go func() {
				_, err := n.Acquire(context.Background(), request("a"))
				result <- err
			}()
			synctest.Wait()
			d.will(ok)
			closed := make(chan error)
			go func() { closed <- n.Close() }()
			synctest.Wait()
			select {
			case err := <-result:
				if !errors.Is(err, locker.ErrClosed) {
					t.Error(err)
				}
			default:
				t.Error("Close did not wake the caller")
			}
			if n := len(d.sent("release")); n != 1 {
				t.Errorf("%d releases, want 1", n)
			}
			close(wake)
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if _, err := n.Acquire(t.Context(), request("b")); !errors.Is(err, locker.ErrClosed) {
				t.Error(err)
			}
		})
	})
	t.Run("is bounded when the server hangs", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			d := &fake{answer: hangs}
			n := New(d, Options{Name: "n1", Timeout: timeout})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = n.Acquire(ctx, request("a"))
			start := time.Now()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d > timeout {
				t.Errorf("took %v", d)
			}
		})
	})
	t.Run("is bounded when the client ignores contexts", func(t *testing.T) {
		virtual.Test(t, func(t *testing.T) {
			wake := make(chan struct{})
			d := &fake{answer: until(wake, ok)}
			n := New(d, Options{Name: "n1", Timeout: timeout})
			_, _ = n.Acquire(t.Context(), request("a"))
			start := time.Now()
			if err := n.Close(); err == nil {
				t.Error("Close is silent about a command in flight")
			}
			if d := time.Since(start); d > timeout+time.Second {
				t.Errorf("took %v", d)
			}
			close(wake)
		})
	})
}
