package node

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// A caller may leave before or after the reply comes. In both cases nothing is left behind.
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
			synctest.Wait() // the clean-up has failed, too
			d.forgetAll()
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
			synctest.Wait()
			d.forgetAll()
			d.will(ok)
			time.Sleep(2 * time.Second)
		}, 1},
		{"nonsense", func(t *testing.T, d *fake, n *Node) {
			d.will(all("secret"))
			_, err := n.Acquire(t.Context(), request("a"))
			if !errors.Is(err, locker.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
				t.Error(err)
			}
			synctest.Wait()
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
					if step := wire.Steps(cmd)[0]; cmd[3] != "p:k" || step.Token != "a" {
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
		time.Sleep(request("").TTL + cleanupLife + time.Second)
		d.forgetAll()
		time.Sleep(time.Hour)
		if n := len(d.sent("release")); n != 0 {
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
		synctest.Wait()
		d.forgetAll()
		d.will(ok)
		time.Sleep(2 * timeout)
		cmds := d.sent("release")
		if len(cmds) != 1 || tombstone(cmds[0]) != "0" {
			t.Errorf("releases after the server was back: %q, want one without tombstone", cmds)
		}
	})
}

// A clean-up of an attempt that has landed is joined with the rest of its batch. One that leaves a tombstone is a
// command of its own, in the same batch.
func TestCleanupsAreJoinedUnlessTheyLeaveATombstone(t *testing.T) {
	for name, tt := range map[string]struct {
		landed   bool
		commands int
	}{"landed": {true, 1}, "in doubt": {false, 2}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake, n *Node) {
				wake := make(chan struct{})
				d.will(until(wake, ok))
				for range 4 { // all that may be in flight, so that what comes next is gathered
					go func() { _ = n.Extend(t.Context(), request("a")) }()
				}
				synctest.Wait()
				other := request("b")
				other.Key = "other"
				go func() { _, _ = n.Acquire(t.Context(), other) }()
				undone := request("a")
				n.Undo(&undone, tt.landed)
				synctest.Wait()
				d.forgetAll()
				close(wake)
				synctest.Wait()
				if d.trips() != 1 || len(d.batches[0]) != tt.commands {
					t.Errorf("sent %q, want one batch of %d commands", d.batches, tt.commands)
				}
				if len(d.sent("acquire")) != 1 || len(d.sent("release")) != 1 {
					t.Errorf("sent %q, want an acquisition and a clean-up", d.batches)
				}
			})
		})
	}
}
