package redlock_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
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

// eachIdentity runs f with each driver. It also runs f on servers that refuse INFO, with all drivers mixed, because a
// server must be recognized without that. start starts the servers.
func eachIdentity(t *testing.T, f func(t *testing.T, driver string, start func(t testing.TB, n int) cluster)) {
	const refused = "INFO is refused"
	sideBySide(t, append(short.Part(t, 1, drivers.Names()), refused), func(t *testing.T, driver string) {
		if driver != refused {
			f(t, driver, startCluster)
			return
		}
		f(t, "mixed", func(t testing.TB, n int) cluster {
			c := startCluster(t, n)
			for _, s := range c {
				s.User(t, "default", "-info")
			}
			return c
		})
	})
}

// aliased puts each of three servers behind a proxy, and makes a client that reaches them through the proxies: an
// address leads to another server when its proxy is redirected.
func (c cluster) aliased(t *testing.T, driver string, logger *slog.Logger) (ps []*fault.Proxy, l *locker.Client) {
	t.Helper()
	var addrs []string
	for _, s := range c {
		p := fault.New(t, s.Addr())
		ps, addrs = append(ps, p), append(addrs, p.Addr())
	}
	l = client(t, driver, addrs, redlock.Logger(logger), redlock.Budget(time.Second))
	eventually(t, time.Minute, "a lock without a fault", func() bool { return tryCycle(t.Context(), l, "warm") == nil })
	c.wantNoLocks(t)
	return ps, l
}

// move makes a proxy's address lead to another server.
func move(p *fault.Proxy, to *redistest.Server) {
	p.Redirect(to.Addr())
	p.Cut()
}

// extendedByAll extends a lease until all nodes have done so: then its client knows that they all have it.
func extendedByAll(t testing.TB, lease locker.Lease, n int) {
	t.Helper()
	eventually(t, time.Minute, "all extend", func() bool {
		var agreed atomic.Int32
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
			if v.Err == nil {
				agreed.Add(1)
			}
		}})
		return lease.Extend(ctx) == nil && within(time.Second, func() bool { return int(agreed.Load()) == n })
	})
}

// wantNotExtended extends a lease in vain until the error says that two nodes are one server.
func wantNotExtended(t testing.TB, lease locker.Lease) (err error) {
	t.Helper()
	eventually(t, time.Minute, "it is named", func() bool {
		err = lease.Extend(t.Context())
		if err == nil {
			t.Fatal("extended by nodes that are one server, or that the owner did not lock under their numbers")
		}
		return strings.Contains(err.Error(), "same server")
	})
	return err
}

// wantSame checks that err says that two nodes are one server, and that one of them had no vote.
func wantSame(t testing.TB, err error, a, b string) {
	t.Helper()
	wantText(t, err, a+" and "+b+" are the same server")
	var outcomes []redlock.Outcome
	for _, name := range []string{a, b} {
		outcomes = append(outcomes, voteOf(t, err, name).Outcome)
	}
	if n := strings.Count(fmt.Sprint(outcomes), string(redlock.Duplicate)); n != 1 {
		t.Errorf("%v: %d duplicates of %s and %s, want 1", err, n, a, b)
	}
}

// A server that is given twice, under two addresses, has one vote.
func TestServerGivenTwiceVotesOnce(t *testing.T) {
	t.Parallel()
	eachIdentity(t, func(t *testing.T, driver string, start func(t testing.TB, n int) cluster) {
		c := start(t, 2)
		_, port, err := net.SplitHostPort(c[0].Addr())
		if err != nil {
			t.Fatal(err)
		}
		for name, again := range map[string]string{
			"another name": net.JoinHostPort("localhost", port), "a proxy": fault.New(t, c[0].Addr()).Addr(),
		} {
			log := newLog()
			l := client(t, driver, []string{c[0].Addr(), c[1].Addr(), again}, redlock.Logger(log.Logger),
				redlock.Budget(time.Second))
			eventually(t, time.Minute, name+": two servers are a majority of three",
				func() bool { return tryCycle(t.Context(), l, name) == nil })
			eventually(t, time.Minute, name+": it is logged", func() bool {
				_ = tryCycle(t.Context(), l, name)
				return log.says("level=ERROR", c[0].Addr()+" and "+again+" are the same server")
			})
			c.wantNoLocks(t)
			c[1].Pause()
			eventually(t, time.Minute, name+": it is named", func() bool {
				_, err = l.TryLock(t.Context(), "k", locker.TTL(longTTL))
				if err == nil {
					t.Fatalf("%s: one server was a majority", name)
				}
				return strings.Contains(err.Error(), "same server")
			})
			wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
			wantSame(t, err, c[0].Addr(), again)
			c[1].Resume()
			c.wantNoLocks(t)
			if n := strings.Count(log.String(), "same server"); n > 2 {
				t.Errorf("%s: logged %d times: %s", name, n, log)
			}
		}
	})
}

// If an address moves to the server of another node, that server gets no second vote: neither for the lock that
// somebody else holds on the other two servers, nor afterwards.
func TestAddressMovesBetweenLocks(t *testing.T) {
	t.Parallel()
	eachIdentity(t, func(t *testing.T, driver string, start func(t testing.TB, n int) cluster) {
		c := start(t, 3)
		ps, a := c.aliased(t, driver, newLog().Logger)
		b := c.client(t, driver)
		move(ps[1], c[0])
		for n := range 10 {
			key := fmt.Sprint("k", n)
			c[0].Cmd(t, "SET", "lock:"+key, "somebody", "PX", 600_000) // b holds the other two, as after any split vote
			lease, err := b.Lock(t.Context(), key, locker.TTL(longTTL))
			if err != nil {
				t.Fatal(err)
			}
			c[0].Cmd(t, "DEL", "lock:"+key)
			if second, err := a.TryLock(t.Context(), key, locker.TTL(longTTL)); err == nil {
				t.Fatalf("two hold it: %d, %v, and %d", lease.Fence(), lease.Err(), second.Fence())
			} else if !errors.Is(err, locker.ErrHeld) && !errors.Is(err, locker.ErrUnavailable) {
				t.Error(err)
			}
			steady.Unlock(t, lease)
		}
		c.wantNoLocks(t)
		eventually(t, time.Minute, "two servers are a majority of three",
			func() bool { return tryCycle(t.Context(), a, "k") == nil })
		c[2].Pause()
		var err error
		eventually(t, time.Minute, "it is named", func() bool {
			_, err = a.TryLock(t.Context(), "k", locker.TTL(longTTL))
			return err == nil || strings.Contains(err.Error(), "same server")
		})
		wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
		wantSame(t, err, ps[0].Addr(), ps[1].Addr())
		c[2].Resume()
		c.wantNoLocks(t)
	})
}

// The same in the middle of a lease: the server does not extend it for two, nor count for two when it is released.
func TestAddressMovesUnderALease(t *testing.T) {
	t.Parallel()
	eachIdentity(t, func(t *testing.T, driver string, start func(t testing.TB, n int) cluster) {
		c := start(t, 3)
		ps, l := c.aliased(t, driver, newLog().Logger)
		lease := c.lockAll(t, l, "k", locker.NoRenewal())
		extendedByAll(t, lease, len(c))
		move(ps[1], c[0])
		eventually(t, time.Minute, "the other two extend it", func() bool { return lease.Extend(t.Context()) == nil })
		c[2].Pause()
		err := wantNotExtended(t, lease)
		wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
		wantSame(t, err, ps[0].Addr(), ps[1].Addr())
		if err := lease.Unlock(t.Context()); err == nil {
			t.Error("one server released for two")
		}
		c[2].Resume()
		move(ps[1], c[1])
		c[1].Cmd(t, "DEL", "lock:k") // which nobody could reach
		c.wantNoLocks(t)
	})
}

// Addresses that were swapped cost the lease its votes, but nothing is left behind.
func TestAddressesAreSwappedUnderALease(t *testing.T) {
	t.Parallel()
	eachIdentity(t, func(t *testing.T, driver string, start func(t testing.TB, n int) cluster) {
		c := start(t, 3)
		ps, l := c.aliased(t, driver, newLog().Logger)
		lease := c.lockAll(t, l, "k", locker.NoRenewal())
		extendedByAll(t, lease, len(c))
		move(ps[0], c[1])
		move(ps[1], c[0])
		_ = wantNotExtended(t, lease)
		if err := lease.Unlock(t.Context()); err == nil {
			t.Error("released by nodes that the owner did not lock under their numbers")
		}
		c.wantNoLocks(t)
		eventually(t, time.Minute, "it works over the new connections",
			func() bool { return tryCycle(t.Context(), l, "k") == nil })
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
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				log := newLog()
				l := tt.nodes(t).client(t, driver, redlock.Logger(log.Logger))
				for _, words := range tt.want {
					if !log.says(append(words, "level=WARN")...) {
						t.Errorf("nothing about %q in: %s", words, log)
					}
				}
				// What the servers' settings weaken may be logged at any time, and looks at them have tests of their own.
				if n := strings.Count(log.String(), `msg="redlock: `); n != len(tt.want) {
					t.Errorf("%d warnings about the nodes, want %d: %s", n, len(tt.want), log)
				}
				cycle(t, l, "a") // warnings are no obstacle
			})
		})
	}
}
