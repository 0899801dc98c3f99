package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/redlock"
)

// hold makes somebody else the owner of lock k on a server.
func hold(t testing.TB, s *redistest.Server, owner string, ms int) {
	t.Helper()
	s.Cmd(t, "SET", "lock:k", owner, "PX", ms)
}

// unheard reports whether a node has said nothing.
func unheard(v redlock.Vote) bool {
	return v.Outcome == redlock.NoAnswer || v.Outcome == redlock.NotHeard || v.Outcome == redlock.NotAsked
}

// answered calls f with longer and longer times, from wait on, until so many nodes have answered the attempt within
// them. On a machine that stalls, a context may end before anything was sent, and then there is only its own error.
func answered(nodes int, wait time.Duration, f func(wait time.Duration) error) (err error) {
	for ; wait < longTimeout/2; wait *= 2 {
		err = f(wait)
		var q *redlock.QuorumError
		if !errors.As(err, &q) {
			continue
		}
		silent := slices.DeleteFunc(slices.Clone(q.Votes), func(v redlock.Vote) bool {
			return !unheard(v)
		})
		if len(q.Votes)-len(silent) >= nodes {
			break
		}
	}
	return err
}

// An attempt reports its failure in a sentence for an operator and in fields for a program.
func TestErrors(t *testing.T) {
	t.Parallel()
	try := func(t *testing.T, l locker.Locker) error {
		_, err := l.TryLock(t.Context(), "k", locker.TTL(longTTL))
		return err
	}
	tests := []struct {
		name     string
		n        int
		args     []string // of node 0
		do       func(t *testing.T, c cluster, l locker.Locker) error
		want     []error
		outcomes string   // of the nodes, in order; * is any
		text     []string // {0}, {1}, …: the nodes' names
		until    bool     // the first errors may still be about connections that died
		least    time.Duration
		most     time.Duration
	}{
		{
			name: "held", n: 5, do: func(t *testing.T, c cluster, l locker.Locker) error {
				for i, s := range c {
					hold(t, s, "somebody", 20000+10000*i) // a majority is free when three are: after 40 s
				}
				return try(t, l)
			},
			want: []error{locker.ErrHeld}, text: []string{"held by ", "acquire: 0 of 5 nodes agreed, 3 are needed"},
			outcomes: "* * * * *", least: time.Second, most: 60 * time.Second,
		}, {
			name: "held by a majority", n: 3, do: func(t *testing.T, c cluster, l locker.Locker) error {
				hold(t, c[0], "somebody", 60000)
				hold(t, c[1], "somebody", 30000)
				return try(t, l)
			},
			want: []error{locker.ErrHeld}, text: []string{"held by ", "{0} held", "{1} held"},
			outcomes: "held held *", least: 20 * time.Second, most: 30 * time.Second,
		}, {
			name: "hung, and the context ends", n: 3, do: func(t *testing.T, c cluster, l locker.Locker) error {
				c[0].Pause()
				c[1].Pause()
				return answered(1, 50*time.Millisecond, func(wait time.Duration) error {
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					defer cancel()
					_, err := l.Lock(ctx, "k", locker.TTL(longTTL))
					return err
				})
			},
			want:     []error{locker.ErrNoQuorum, locker.ErrUnavailable, context.DeadlineExceeded},
			outcomes: "no_answer no_answer *", text: []string{"timed out after", "{0} no answer"},
		}, {
			name: "hung, and the context is cancelled", n: 3, do: func(t *testing.T, c cluster, l locker.Locker) error {
				c[0].Pause()
				c[1].Pause()
				return answered(1, 50*time.Millisecond, func(wait time.Duration) error {
					ctx, cancel := context.WithCancelCause(t.Context())
					time.AfterFunc(wait, func() { cancel(errors.New("shutting down")) })
					_, err := l.TryLock(ctx, "k", locker.TTL(longTTL))
					return err
				})
			},
			want:     []error{locker.ErrNoQuorum, locker.ErrUnavailable, context.Canceled},
			outcomes: "no_answer no_answer *", text: []string{"canceled", "shutting down", "{1} no answer"},
		}, {
			name: "held, and the context ends", n: 3, do: func(t *testing.T, c cluster, l locker.Locker) error {
				for _, s := range c {
					hold(t, s, "somebody", 60000)
				}
				return answered(2, 300*time.Millisecond, func(wait time.Duration) error {
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					defer cancel()
					_, err := l.Lock(ctx, "k", locker.TTL(longTTL))
					return err
				})
			},
			want: []error{locker.ErrHeld, context.DeadlineExceeded}, outcomes: "* * *",
			text: []string{"timed out after", ": held by "}, least: 20 * time.Second, most: 60 * time.Second,
		}, {
			name: "password wanted, another down", n: 3, args: []string{"--requirepass", "secret"},
			do: func(t *testing.T, c cluster, l locker.Locker) error {
				c[1].Kill()
				return try(t, l)
			},
			want: []error{locker.ErrNoQuorum, locker.ErrUnavailable}, outcomes: "failed failed *", until: true,
			text: []string{"{0} failed (NOAUTH", "{1} failed (", "connection refused"},
		}, {
			name: "two read-only", n: 3, do: func(t *testing.T, c cluster, l locker.Locker) error {
				c[0].Cmd(t, "REPLICAOF", "127.0.0.1", "1")
				c[2].Cmd(t, "REPLICAOF", "127.0.0.1", "1")
				return try(t, l)
			},
			want: []error{locker.ErrNoQuorum, locker.ErrUnavailable}, outcomes: "failed * failed",
			text: []string{"{0} failed (READONLY", "{2} failed (READONLY"},
		}, {
			name: "something else under the key on two of three", n: 3,
			do: func(t *testing.T, c cluster, l locker.Locker) error {
				c[0].Cmd(t, "HSET", "lock:k", "f", "v")
				c[1].Cmd(t, "SET", "lock:k", "no expiry")
				return try(t, l)
			},
			want: []error{locker.ErrForeignKey}, outcomes: "failed failed *",
			text: []string{"not a lock", "{0} failed", "{1} failed"},
		}, {
			name: "something else under the key on one of three", n: 3,
			do: func(t *testing.T, c cluster, l locker.Locker) error {
				c[0].Cmd(t, "HSET", "lock:k", "f", "v")
				return steadyCycle(t.Context(), l, "k")
			},
		}, {
			name: "deleted by somebody, or released twice", n: 3, do: func(t *testing.T, c cluster, l locker.Locker) error {
				lease := c.lockAll(t, l, "k")
				for _, s := range c {
					s.Cmd(t, "DEL", "lock:k")
				}
				return lease.Unlock(t.Context())
			},
			want: []error{locker.ErrUnavailable}, text: []string{"no such lock although its TTL is not over"},
		}, {
			name: "deleted, and then of somebody else on two of three", n: 3,
			do: func(t *testing.T, c cluster, l locker.Locker) error {
				lease := c.lockAll(t, l, "k")
				for _, s := range c {
					s.Cmd(t, "DEL", "lock:k")
				}
				hold(t, c[0], "somebody", 60000)
				hold(t, c[1], "somebody", 60000)
				return lease.Unlock(t.Context())
			},
			want: []error{locker.ErrNotHeld, locker.ErrLost}, text: []string{"no longer held", "taken over"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				c := startCluster(t, tt.n)
				if tt.args != nil {
					c[0] = redistest.Start(t, tt.args...)
				}
				var err error
				// An acquisition that competes with others does not wait for nodes that are a little late.
				late := func() bool {
					var q *redlock.QuorumError
					ok := errors.As(err, &q)
					for i, want := range strings.Fields(tt.outcomes) {
						if ok && want != "*" && want != "no_answer" && unheard(q.Votes[i]) {
							return true
						}
					}
					return false
				}
				texts := make([]string, len(tt.text))
				for i, text := range tt.text {
					for n, addr := range c.addrs() {
						text = strings.ReplaceAll(text, fmt.Sprintf("{%d}", n), addr)
					}
					texts[i] = text
				}
				eventually(t, 30*time.Second, "the error", func() bool {
					// An exchange with a node that hangs outlasts the attempt, also one that a stall makes long. A
					// client that has seen a split vote would ask one node first for a while.
					l := c.client(t, driver, redlock.Timeout(longTimeout))
					err = tt.do(t, c, l)
					if late() {
						return false
					}
					for _, text := range texts {
						if tt.until && !strings.Contains(fmt.Sprint(err), text) {
							return false
						}
					}
					return true
				})
				for _, s := range c {
					defer s.Resume() // so that Close need not wait
				}
				wantErr(t, err, tt.want...)
				wantText(t, err, texts...)
				if tt.outcomes == "" {
					return
				}
				q := quorumError(t, err)
				if q.Op != "acquire" || q.Need != tt.n/2+1 || len(q.Votes) != tt.n {
					t.Fatalf("%+v", q)
				}
				for i, want := range strings.Fields(tt.outcomes) {
					want = strings.ReplaceAll(want, "_", " ")
					if v := q.Votes[i]; v.Node != c[i].Addr() || want != "*" && string(v.Outcome) != want {
						t.Errorf("vote of %s: %+v, want %s", c[i].Addr(), v, want)
					}
				}
				var held *locker.HeldError
				if ok := errors.As(err, &held); ok != (tt.want[0] == locker.ErrHeld) || ok &&
					(held.Remaining < tt.least || held.Remaining > tt.most) {
					t.Errorf("held: %+v, want %v to %v", held, tt.least, tt.most)
				}
			})
		})
	}
}

// Values of other types under the counters of nodes stay as they are, and Bootstrap ends with its context.
func TestNodesWithForeignCountersAndNodesThatHang(t *testing.T) {
	t.Parallel()
	servers := startCluster(t, 3)
	c := servers.client(t, "goredis")
	counter := script.KeysOf("lock:", "k").Fence()
	for _, s := range servers {
		s.Cmd(t, "RPUSH", counter, "x")
	}
	for range 3 {
		if _, err := c.TryLock(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), counter) {
			t.Errorf("TryLock with lists as counters: %v", err)
		}
	}
	for i, s := range servers {
		if typ := s.Cmd(t, "TYPE", counter); typ != "list" {
			t.Errorf("node %d has a %s as its counter", i, typ)
		}
	}
	for _, driver := range []string{"goredis", "redigo", "rueidis"} {
		var ds []drivers.Driver
		for _, s := range servers {
			ds = append(ds, open(t, driver, s.Addr()))
			s.Pause()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begun := time.Now()
		err := redlock.Bootstrap(ctx, ds, redlock.Guard(time.Second))
		if took := time.Since(begun); err == nil || took > 3*time.Second {
			t.Errorf("%s: Bootstrap returned %v after %v", driver, err, took)
		}
		cancel()
		for i, s := range servers {
			s.Resume()
			_ = ds[i].Close()
		}
	}
}
