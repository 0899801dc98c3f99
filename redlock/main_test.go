package redlock_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/redlock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// cluster is a set of independent servers.
type cluster []*redistest.Server

func startCluster(t testing.TB, n int) cluster {
	t.Helper()
	c := make(cluster, n)
	for i := range c {
		c[i] = redistest.Start(t)
	}
	return c
}

func (c cluster) addrs() []string {
	addrs := make([]string, len(c))
	for i, s := range c {
		addrs[i] = s.Addr()
	}
	return addrs
}

func open(t testing.TB, driver, addr string) drivers.Driver {
	t.Helper()
	d, err := drivers.Open(t.Context(), driver, drivers.Config{Network: "tcp", Addr: addr})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// longTimeout is the budget of clients in tests that are about something else: on a machine that stalls a majority may
// take longer than the default to answer.
const longTimeout = 20 * time.Second

// client makes a client of the cluster. driver "mixed" gives neighbours different drivers.
func (c cluster) client(t testing.TB, driver string, opts ...redlock.Option) *locker.Client {
	t.Helper()
	return client(t, driver, c.addrs(), opts...)
}

func client(t testing.TB, driver string, addrs []string, opts ...redlock.Option) *locker.Client {
	t.Helper()
	names := drivers.Names()
	var ds []drivers.Driver
	for i, addr := range addrs {
		name := driver
		if driver == "mixed" {
			name = names[i%len(names)]
		}
		ds = append(ds, open(t, name, addr))
	}
	opts = append([]redlock.Option{
		redlock.Names(addrs...), redlock.Logger(slog.New(slog.DiscardHandler)), redlock.Budget(longTimeout),
	}, opts...)
	l := redlock.New(ds, opts...)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// locks lists the keys of all servers that are not counters or tombstones.
func (c cluster) locks(t testing.TB) (keys []string) {
	t.Helper()
	for i, s := range c {
		for _, key := range s.Left(t) {
			keys = append(keys, fmt.Sprintf("%s on node %d", key, i+1))
		}
	}
	return keys
}

// wantNoLocks waits until no lock is left on any server.
func (c cluster) wantNoLocks(t testing.TB) {
	t.Helper()
	eventually(t, time.Minute, "no key is left", func() bool { return len(c.locks(t)) == 0 })
}

// within waits until cond holds, for limit at most, and reports whether it did.
func within(limit time.Duration, cond func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		over := time.Now().After(end) // asked before the last look, which a stall may have made late
		if cond() {
			return true
		}
		if over {
			return false
		}
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	if !within(limit, cond) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}
