package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
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
			undone := d.sent(releaseScript)
			if len(undone) != 1 {
				t.Fatalf("%d releases were sent when the caller left, want 1 at once", len(undone))
			}
			if tombstone := undone[0][7]; tombstone != "70000" {
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
				got := d.sent(releaseScript)
				if len(got) != tt.releases {
					t.Errorf("%d releases were sent, want %d: %q", len(got), tt.releases, got)
				}
				for _, cmd := range got {
					if cmd[3] != "p:k" || cmd[6] != "a" {
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
		tries := len(d.sent(releaseScript))
		if tries < 25 || tries > 80 {
			t.Errorf("%d tries in 30 s, want about one a second", tries)
		}
		d.will(all(drivers.ServerError("LOADING Redis is loading the dataset in memory")))
		time.Sleep(5 * time.Second)
		d.forgetAll()
		d.will(ok)
		time.Sleep(time.Minute)
		if n := len(d.sent(releaseScript)); n != 1 {
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
		if n := len(d.sent(releaseScript)); n != 0 {
			t.Errorf("%d releases after the end", n)
		}
	})
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
		cmds := d.sent(releaseScript)
		if len(cmds) != 1 || cmds[0][7] != "0" {
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
		if !errors.Is(err, locker.ErrUnavailable) || len(d.sent(acquireScript)) != 0 {
			t.Errorf("got %v, and %d attempts were sent", err, len(d.sent(acquireScript)))
		}
	})
}

func TestUnknownScriptIsSentInFull(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake, n *Node) {
		d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if cmds[0][0] == "EVALSHA" {
				return all(drivers.ServerError("NOSCRIPT No matching script. Please use EVAL."))(ctx, cmds)
			}
			if cmds[0][0] != "EVAL" || cmds[0][1] != acquireSource {
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

func TestClose(t *testing.T) {
	t.Run("interrupts callers and undoes their attempts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
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
			if n := len(d.sent(releaseScript)); n != 1 {
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
		synctest.Test(t, func(t *testing.T) {
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
		synctest.Test(t, func(t *testing.T) {
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
