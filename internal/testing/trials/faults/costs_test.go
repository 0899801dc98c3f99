package faults

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// costs measures what a waiter costs on a cluster, and on one server. It returns a table.
func costs(t *testing.T, names []string) string {
	const long = 20 * time.Second
	text := "| driver | commands of a waiter in a minute, on a cluster | on one server |\n| --- | --: | --: |\n"
	c, s := redistest.StartCluster(t, 3, false), redistest.Start(t)
	for _, name := range names {
		one := func() drivers.Driver {
			d, err := drivers.Open(t.Context(), name, drivers.Config{Network: "tcp", Addr: s.Addr()})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		several := commands(t, long, c.Servers(), func() drivers.Driver { return onCluster(t, name, c) })
		alone := commands(t, long, []*redistest.Server{s}, one)
		text += fmt.Sprintf("| %s | %.0f | %.0f |\n", name, several, alone)
		if several > 2*alone {
			t.Errorf("%s: a waiter of a cluster costs %.0f commands per minute, and %.0f on one server", name, several, alone)
		}
	}
	return text
}

// commands returns how many commands a waiter sends in a minute, while the lock is held by somebody else.
func commands(t *testing.T, long time.Duration, servers []*redistest.Server, d func() drivers.Driver) float64 {
	t.Helper()
	l := single.New(d())
	defer func() { _ = l.Close() }()
	key := backend.NewToken()
	holder, err := l.Lock(t.Context(), key, locker.TTL(time.Hour), locker.NoRenewal())
	if err != nil {
		t.Fatal(err)
	}
	waiter := single.New(d())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = waiter.Lock(ctx, key)
	}()
	for told := false; !told; <-time.After(10 * time.Millisecond) { // until it can be told
		for _, s := range servers {
			waiters, _ := s.Do("HVALS", "{"+single.DefaultPrefix+key+"}:lockwait")
			told = told || strings.Contains(fmt.Sprint(waiters), "inbox")
		}
	}
	before := executed(t, servers)
	<-time.After(long)
	n := executed(t, servers) - before
	cancel()
	<-done
	_ = waiter.Close()
	_ = holder.Unlock(t.Context())
	return float64(n) * float64(time.Minute) / float64(long)
}

// executed returns how many commands the servers have executed for clients. INFO itself is left out.
func executed(t *testing.T, servers []*redistest.Server) (n int) {
	t.Helper()
	for _, s := range servers {
		for _, line := range strings.Split(fmt.Sprint(s.Cmd(t, "INFO", "commandstats")), "\r\n") {
			name, stats, _ := strings.Cut(line, ":")
			switch strings.TrimPrefix(name, "cmdstat_") {
			case "evalsha", "eval", "publish", "spublish", "subscribe", "ssubscribe":
				count, _, _ := strings.Cut(strings.TrimPrefix(stats, "calls="), ",")
				i, _ := strconv.Atoi(count)
				n += i
			}
		}
	}
	return n
}
