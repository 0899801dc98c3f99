package faults

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/single"
)

// silenced is a driver whose commands do not arrive while it is silent.
type silenced struct {
	drivers.Driver
	silent atomic.Bool
}

func (s *silenced) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if s.silent.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Driver.Do(ctx, cmds...)
}

// A lock that was granted from the queue, has ended, and comes back, because the data are old and the clock is behind,
// must not be claimed.
func TestScheduleClaimFromOldData(t *testing.T) {
	if why := testserver.NoClock(); why != "" {
		t.Log(why)
		return
	}
	const most = 20 * time.Second
	c, env := testserver.NewClock(t.TempDir())
	s, ctx := redistest.StartWith(t, env), t.Context()
	open := func() *silenced {
		d, err := drivers.Open(ctx, "redigo", drivers.Config{Network: "tcp", Addr: s.Addr(), Timeout: exchangeTimeout})
		if err != nil {
			t.Fatal(err)
		}
		return &silenced{Driver: d}
	}
	lock := func(l *locker.Client) locker.Lease {
		lease, err := l.Lock(ctx, "key", locker.TTL(most), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	waits := open()
	if err := single.Bootstrap(ctx, waits, single.Guard(most)); err != nil {
		t.Fatal(err)
	}
	var clients [3]*locker.Client
	for i, d := range []drivers.Driver{open(), waits, open()} {
		clients[i] = single.New(d, single.Guard(most), single.Timeout(exchangeTimeout))
		defer func() { _ = clients[i].Close() }()
	}
	first := lock(clients[0])
	late := make(chan locker.Lease, 1)
	waiting, leave := context.WithTimeout(ctx, 10*time.Second)
	defer leave()
	go func() {
		l, err := clients[1].Lock(waiting, "key", locker.TTL(most), locker.NoRenewal())
		if err != nil {
			t.Logf("the waiter: %v", err)
		}
		late <- l
	}()
	for len(s.Keys(t, "*lockqueue*")) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	waits.silent.Store(true)
	if err := first.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	s.Cmd(t, "SAVE")           // the lock is the waiter's, who has not heard of it
	relied := lock(clients[2]) // when the waiter's time to claim it is over
	s.Kill()
	if err := c.Set(-5*time.Second, 0); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	waits.silent.Store(false)
	if l := <-late; l != nil && relied.Err() == nil && time.Now().Before(relied.Until()) {
		t.Errorf("two holders: the waiter has token %d, and another client relies on token %d for %v", l.Fence(),
			relied.Fence(), time.Until(relied.Until()))
	}
}
