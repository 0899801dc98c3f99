package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/fault"
	"github.com/golocker/locker/internal/redistest"
	"github.com/golocker/locker/redlock"
)

// log is a logger and what it has written.
type log struct {
	*slog.Logger
	mu   sync.Mutex
	text bytes.Buffer
}

func newLog() *log {
	l := &log{}
	l.Logger = slog.New(slog.NewTextHandler(l, nil))
	return l
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// says reports whether one line has all of words.
func (l *log) says(words ...string) bool {
	for line := range strings.Lines(l.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

func TestSameServerTwice(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2)
	_, port, err := net.SplitHostPort(c[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	for name, again := range map[string]string{
		"another name": net.JoinHostPort("localhost", port), "a proxy": fault.New(t, c[0].Addr()).Addr(),
	} {
		for _, driver := range drivers.Names() {
			t.Run(name+", "+driver, func(t *testing.T) {
				addrs := []string{c[0].Addr(), c[1].Addr(), again}
				var ds []drivers.Driver
				var err error
				eventually(t, 30*time.Second, "it is refused", func() bool {
					ds = nil
					for _, addr := range addrs {
						d := open(t, driver, addr)
						t.Cleanup(func() { _ = d.Close() })
						ds = append(ds, d)
					}
					start := time.Now()
					l, e := redlock.New(ds, redlock.Names(addrs...), redlock.Logger(newLog().Logger))
					if err = e; err != nil {
						return true
					}
					if took := time.Since(start); took < time.Second { // else it had waited in vain for one of the nodes
						t.Fatalf("accepted, after %v", took)
					}
					_ = l.Close()
					return false
				})
				wantText(t, err, addrs[0], again, "same server")
				if strings.Contains(err.Error(), addrs[1]) {
					t.Errorf("%v names an innocent one", err)
				}
				if _, err := ds[0].Do(t.Context(), drivers.Command{"PING"}); err != nil {
					t.Errorf("New closed a driver: %v", err)
				}
			})
		}
	}
}

// A node that was down at the start turns out to be another one's double: it does not vote, and somebody is told.
func TestSameServerTwiceFoundOutLater(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 2)
		p := fault.New(t, c[0].Addr())
		p.Refuse(true)
		log := newLog()
		l := client(t, driver, []string{c[0].Addr(), c[1].Addr(), p.Addr()}, redlock.Logger(log.Logger))
		cycle(t, l, "k")
		if s := log.String(); s != "" {
			t.Errorf("logged: %s", s)
		}
		p.Refuse(false)
		eventually(t, 10*time.Second, "it is found out", func() bool {
			_ = tryCycle(t.Context(), l, "k") // while it votes, too, one server answers two releases
			return log.says("level=ERROR", "same server", c[0].Addr(), p.Addr())
		})
		c.wantNoLocks(t)
		eventually(t, 10*time.Second, "the other two serve", func() bool { return tryCycle(t.Context(), l, "k") == nil })
		// Keys of their own: what it was asked before may be on its way yet.
		for n := range 5 {
			cycle(t, l, fmt.Sprint("later", n))
		}
		if n := p.Count(func(q fault.Request) bool { return isAcquire(q.Args) && strings.HasPrefix(q.Args[3], "lock:later") }); n != 0 {
			t.Errorf("it was asked %d times more", n)
		}
		c[1].Kill() // then it must not count for two
		var err error
		eventually(t, 30*time.Second, "no quorum", func() bool { // what it was asked before may land, and is undone
			_, err = l.TryLock(t.Context(), "k", locker.TTL(longTTL))
			return !errors.Is(err, locker.ErrHeld)
		})
		wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
		if v := voteOf(t, err, p.Addr()); v.Outcome != redlock.Duplicate || v.Err == nil {
			t.Errorf("vote %+v", v)
		}
		wantText(t, err, p.Addr()+" duplicate", "same server")
		c[:1].wantNoLocks(t)
	})
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		nodes func(t *testing.T) cluster
		want  [][]string // words that are on one line each
	}{
		{"three in order", func(t *testing.T) cluster { return startCluster(t, 3) }, nil},
		{"one", func(t *testing.T) cluster { return startCluster(t, 1) }, [][]string{{"fewer than three", "nodes=1"}}},
		{"two", func(t *testing.T) cluster { return startCluster(t, 2) }, [][]string{{"fewer than three", "nodes=2"}}},
		{"four", func(t *testing.T) cluster { return startCluster(t, 4) }, [][]string{{"even number", "nodes=4"}}},
		{"a replica", func(t *testing.T) cluster {
			c := startCluster(t, 3)
			c[1] = redistest.Start(t, "--repl-diskless-sync-delay", "0")
			_, port, _ := net.SplitHostPort(c[1].Addr())
			replica := redistest.Start(t, "--replicaof", "127.0.0.1", port)
			eventually(t, 20*time.Second, "the replica is connected", func() bool {
				info, _ := replica.Cmd(t, "INFO", "replication").(string)
				return strings.Contains(info, "master_link_status:up")
			})
			return c
		}, [][]string{{"replicas", "replicas=1"}}},
		{"INFO denied", func(t *testing.T) cluster {
			c := startCluster(t, 3)
			c[2].Cmd(t, "ACL", "SETUSER", "default", "-info")
			return c
		}, [][]string{{"+info", "NOPERM"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				log := newLog()
				l := tt.nodes(t).client(t, driver, redlock.Logger(log.Logger))
				// New may have waited for a node in vain, on a machine that stalls; then it is asked again when it answers.
				within(10*time.Second, func() bool {
					if strings.Count(log.String(), "\n") >= len(tt.want) {
						return true
					}
					_ = tryCycle(t.Context(), l, "k") // which may still be on one node, and others be late
					return false
				})
				for _, words := range tt.want {
					if !log.says(append(words, "level=WARN")...) {
						t.Errorf("nothing about %q in: %s", words, log)
					}
				}
				if lines := strings.Count(log.String(), "\n"); lines != len(tt.want) {
					t.Errorf("%d warnings, want %d: %s", lines, len(tt.want), log)
				}
				cycle(t, l, "a") // warnings are no obstacle
				cycle(t, l, "b")
				if lines := strings.Count(log.String(), "\n"); lines != len(tt.want) {
					t.Errorf("again: %s", log)
				}
			})
		})
	}
}

// A server that is not in service when New asks is asked again when it is.
func TestWarningLater(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, driver string) {
		c := startCluster(t, 3)
		c[2].Kill()
		log := newLog()
		l := c.client(t, driver, redlock.Logger(log.Logger))
		if s := log.String(); s != "" {
			t.Errorf("logged: %s", s)
		}
		c[2].Restart()
		c[2].Cmd(t, "ACL", "SETUSER", "default", "-info")
		n := 0
		eventually(t, 10*time.Second, "the warning", func() bool {
			n++
			cycle(t, l, fmt.Sprint("k", n)) // the last may still be on one node
			return log.says("+info", c[2].Addr())
		})
		c.wantNoLocks(t)
	})
}

func TestNewWithNodesDownOrHung(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fail, restore func(*redistest.Server)
	}{
		"down": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"hung": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				c := startCluster(t, 3)
				for _, s := range c {
					tt.fail(s)
				}
				defer func() {
					for _, s := range c {
						s.Resume()
					}
				}()
				var ds []drivers.Driver
				for _, s := range c {
					d, err := drivers.Open(t.Context(), driver, drivers.Config{Network: "tcp", Addr: s.Addr(), Timeout: patient})
					if err != nil {
						t.Fatal(err)
					}
					ds = append(ds, d)
				}
				start := time.Now()
				l, err := redlock.New(ds, redlock.Budget(200*time.Millisecond), redlock.Timeout(time.Second), redlock.Logger(newLog().Logger))
				if took := time.Since(start); err != nil || took > patient/2 {
					t.Fatalf("New takes %v: %v", took, err)
				}
				defer l.Close()
				_, err = l.Lock(t.Context(), "k", locker.TTL(longTTL))
				wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
				tt.restore(c[0])
				_, err = l.Lock(t.Context(), "k", locker.TTL(longTTL))
				if err == nil {
					t.Fatal("one of three is no majority")
				}
				tt.restore(c[1])
				eventually(t, 20*time.Second, "two of three serve", func() bool { return tryCycle(t.Context(), l, "k") == nil })
				tt.restore(c[2])
				c.wantNoLocks(t)
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	d := open(t, "redigo", redistest.Start(t).Addr())
	defer d.Close()
	many := make([]drivers.Driver, 33)
	for i := range many {
		many[i] = d
	}
	for text, f := range map[string]func() (*locker.Client, error){
		"no nodes":     func() (*locker.Client, error) { return redlock.New(nil) },
		"32 are":       func() (*locker.Client, error) { return redlock.New(many) },
		"1 names":      func() (*locker.Client, error) { return redlock.New(many[:2], redlock.Names("a")) },
		`called "a"`:   func() (*locker.Client, error) { return redlock.New(many[:2], redlock.Names("a", "a")) },
		"node 1 and n": func() (*locker.Client, error) { return redlock.New(many[:2]) },
	} {
		l, err := f()
		if err == nil {
			_ = l.Close()
		}
		wantText(t, err, "redlock: ", text)
	}
}

// A node that always answers after the majority is asked who it is, too; Close does not wait for checks that hang.
func TestCloseWhileANodeIsChecked(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	p := fault.New(t, c[2].Addr())
	p.Refuse(true)
	l := cluster{c[0], c[1]}.addrs()
	cl, err := redlock.New([]drivers.Driver{
		open(t, "goredis", l[0]), open(t, "redigo", l[1]), open(t, "rueidis", p.Addr()),
	}, redlock.Logger(newLog().Logger), redlock.Timeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	p.Refuse(false)
	p.Handle(func(q fault.Request) fault.Action {
		if q.Is("INFO") {
			return fault.Hold
		}
		return fault.DelayReply(30 * time.Millisecond)
	})
	eventually(t, 10*time.Second, "it is asked who it is", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tryCycle(ctx, cl, "k"); err != nil && !errors.Is(err, locker.ErrUnavailable) && ctx.Err() == nil {
			t.Error(err)
		}
		return p.Count(func(q fault.Request) bool { return q.Is("INFO") }) > 0
	})
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}
