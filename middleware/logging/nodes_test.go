package logging_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/redlock"
)

// A node that is down is logged in two lines, whether it refuses or hangs. A slow node is not logged, although its
// answers come too late.
func TestNodes(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var dead, hung atomic.Bool
		deliver := func(delay time.Duration) simnode.Network {
			return func(ctx context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply,
				error) {
				switch {
				case delay == 0 && dead.Load():
					return nil, drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
				case delay == 0 && hung.Load():
					<-ctx.Done()
					return nil, io.EOF
				}
				time.Sleep(delay)
				return execute(), nil
			}
		}
		var ds []drivers.Driver
		for _, delay := range []time.Duration{0, time.Millisecond, time.Millisecond, time.Millisecond,
			50 * time.Millisecond} {
			ds = append(ds, simnode.New().Driver(deliver(delay)))
		}
		var j journal
		c := redlock.New(ds, redlock.Names("a", "b", "c", "d", "slow"),
			redlock.Logger(slog.New(slog.DiscardHandler)))
		l := locker.Wrap(c, logging.New(j.logger(slog.LevelInfo)))
		cycles := func() {
			for i := range 60 { // for 15 s: until a command has timed out, and five seconds more
				mustUnlock(t, mustLock(t, l, fmt.Sprint(i)))
				time.Sleep(250 * time.Millisecond)
			}
		}
		cycles()
		j.wantNews(t)
		dead.Store(true)
		cycles()
		j.wantNews(t, "WARN lock node unavailable err=lock store unavailable: a: dial tcp: connection refused node=a")
		dead.Store(false)
		cycles()
		j.wantNews(t, "INFO lock node answers again down=* node=a")
		hung.Store(true)
		cycles()
		j.wantNews(t, "WARN lock node unavailable err=* node=a")
		hung.Store(false)
		cycles()
		j.wantNews(t, "INFO lock node answers again down=* node=a")
		hung.Store(true)
		cycles()
		j.wantNews(t, "WARN lock node unavailable err=* node=a")
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		j.wantNews(t)
	})
}

// crowd is a backend with an unlimited number of nodes, all of which are down.
type crowd struct {
	backend.Backend
	n int
}

func (c *crowd) Acquire(ctx context.Context, _ backend.Request) (backend.Grant, error) {
	for range 1000 {
		c.n++
		lockertrace.From(ctx).Voted(lockertrace.Vote{Node: fmt.Sprint(c.n), Op: "acquire", Err: locker.ErrUnavailable})
	}
	return backend.Grant{}, locker.ErrUnavailable
}

func TestNodesAreBounded(t *testing.T) {
	var j journal
	c := locker.NewClient(&crowd{})
	defer c.Close()
	l := locker.Wrap(c, logging.New(j.logger(slog.LevelInfo)))
	for range 10 {
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
	}
	if n := len(j.news(t)); n != 65 { // one of them of the store
		t.Errorf("%d records of 10,000 nodes", n)
	}
}
