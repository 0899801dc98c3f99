package recovery

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

const (
	clients = 3 // each with a goroutine for each lock; the last one does not wait for it
	ttl     = 4 * time.Second
	// rest is longer than nodes rest: docs/safety.md.
	rest = ttl + ttl/50 + 2*time.Second
	// hangLimit decides between slow and hung.
	hangLimit = 30 * time.Second
	// exchangeTimeout bounds an exchange, so that a broken connection does not cost a trial its time.
	exchangeTimeout = time.Second
)

// testbed is what one trial runs on.
type testbed struct {
	*testing.T
	trial
	servers  []*redistest.Server
	clocks   []*testserver.Clock
	replicas []*redistest.Server
	proxies  []*fault.Proxy // in front of the servers, if others take their places
	clients  []*locker.Client
	keys     []*episode
}

// episode is one lock across one fault.
type episode struct {
	key     string
	history *history.History
	// held counts acquisitions: before the fault, and after it.
	held [2]atomic.Int32
}

// result is what came of a trial.
type result struct {
	episodes, holds int
	doubles         []history.Violation // one for each lock that had two holders
	idle            int                 // locks that nobody had after the fault
}

func newTestbed(t *testing.T, tr trial) *testbed {
	b := &testbed{T: t, trial: tr}
	args := slices.Clone(tr.kind.args)
	if tr.kind.debug && !strings.Contains(redistest.Version(redistest.Binary(t)), " 6.") { // which allow it always
		args = append(args, "--enable-debug-command", "yes")
	}
	for range tr.nodes {
		var env []string
		if tr.kind.clock {
			var c *testserver.Clock
			c, env = testserver.NewClock(t.TempDir())
			b.clocks = append(b.clocks, c)
		}
		s := redistest.StartWith(t, env, args...)
		b.servers = append(b.servers, s)
		if tr.kind.replicated { // before a client comes, because the first replica gives a server another history
			r := redistest.StartReplica(t, s)
			r.Follow(t, s)
			b.eventually("a master that sends its writes to the replica", func() bool {
				info, _ := s.Do("INFO", "replication")
				return strings.Contains(fmt.Sprint(info), "state=online")
			})
			b.replicas = append(b.replicas, r)
		}
		if tr.kind.moves {
			b.proxies = append(b.proxies, fault.New(t, s.Addr()))
		}
	}
	for range clients {
		b.clients = append(b.clients, b.open())
	}
	for i := range tr.locks {
		b.keys = append(b.keys, &episode{key: fmt.Sprint("episode/", i), history: history.New()})
	}
	return b
}

func (b *testbed) drivers() (ds []drivers.Driver) {
	for i, s := range b.servers {
		addr := s.Addr()
		if b.kind.moves {
			addr = b.proxies[i].Addr()
		}
		d, err := drivers.Open(b.Context(), b.driver, drivers.Config{Network: "tcp", Addr: addr, Timeout: exchangeTimeout})
		if err != nil {
			b.Fatal(err)
		}
		ds = append(ds, d)
	}
	return ds
}

// open returns a client. The servers are new, so the first client says so.
func (b *testbed) open() *locker.Client {
	ds, ctx, guard := b.drivers(), b.Context(), time.Duration(0)
	if b.guarded {
		guard = ttl
	}
	if b.nodes == 1 {
		opts := []single.Option{single.Timeout(exchangeTimeout), single.Guard(guard)}
		if b.waits {
			opts = append(opts, single.WaitReplicas(1, exchangeTimeout/4))
		}
		if b.guarded && b.clients == nil {
			b.bootstrapped(func() error { return single.Bootstrap(ctx, ds[0], opts...) })
		}
		return single.New(ds[0], opts...)
	}
	opts := []redlock.Option{redlock.Timeout(exchangeTimeout), redlock.Budget(exchangeTimeout / 2), redlock.Guard(guard),
		redlock.Logger(slog.New(slog.DiscardHandler))}
	if b.guarded && b.clients == nil {
		b.bootstrapped(func() error { return redlock.Bootstrap(ctx, ds, opts...) })
	}
	c, err := redlock.New(ds, opts...)
	b.must(err)
	return c
}

// bootstrapped says that the servers are new, until they have heard it. A busy machine may take its time.
func (b *testbed) bootstrapped(bootstrap func() error) {
	b.eventually("a bootstrap", func() bool { return bootstrap() == nil })
}

func (b *testbed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// run runs the trial and judges it.
func (tr trial) run(t *testing.T) (r result) {
	b := newTestbed(t, tr)
	ctx, cancel := context.WithCancel(t.Context())
	var over atomic.Int32 // 1: the fault is over
	var workers sync.WaitGroup
	for _, e := range b.keys {
		for id, c := range b.clients {
			l := e.history.Client(id, c)
			workers.Go(func() { e.contend(ctx, l, id == clients-1, &over) })
		}
	}
	b.eventually("locks that are in use", func() bool {
		return !slices.ContainsFunc(b.keys, func(e *episode) bool { return e.held[0].Load() == 0 })
	})
	nodes := rand.Perm(tr.nodes)[:tr.nodes/2+1+rand.IntN(tr.nodes-tr.nodes/2)]
	tr.kind.inject(b, nodes)
	over.Store(1)
	wait := ttl + ttl/4
	if tr.guarded {
		wait += rest
	}
	time.Sleep(wait)
	cancel()
	workers.Wait()
	for _, c := range b.clients {
		if err := c.Close(); err != nil {
			t.Log(err) // of a server that has been replaced
		}
	}
	for _, e := range b.keys {
		e.judge(&r)
	}
	return r
}

// contend acquires the lock, holds it for a part of its TTL, and releases it, again and again. A waiter asks again when
// the last holder's TTL is over, so second holders are mostly clients that come and try.
func (e *episode) contend(ctx context.Context, l locker.Locker, tries bool, over *atomic.Int32) {
	lock, pause := l.Lock, 50*time.Millisecond
	if tries {
		lock, pause = l.TryLock, ttl/5
	}
	for ctx.Err() == nil {
		opts := []locker.Option{locker.TTL(ttl)}
		if rand.IntN(4) > 0 { // renewed leases notice sooner that they are lost
			opts = append(opts, locker.NoRenewal())
		}
		attempt, cancel := context.WithTimeout(ctx, hangLimit)
		lease, err := lock(attempt, e.key, opts...)
		cancel()
		if err != nil {
			wait(ctx, nil, rand.N(pause)) // servers that are down or rest refuse at once
			continue
		}
		e.held[over.Load()].Add(1)
		wait(ctx, lease.Done(), ttl/4+rand.N(ttl)) // some leases end by themselves
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
		_ = lease.Unlock(release)
		cancel()
	}
}

// wait waits for d, until done is closed, or until ctx ends.
func wait(ctx context.Context, done <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	case <-ctx.Done():
	}
}

// judge adds the episode to r. Its history must have ended.
func (e *episode) judge(r *result) {
	e.history.Wait()
	r.episodes++
	for _, v := range e.history.Check(history.Rules{Sound: true}) {
		if v.Rule == "ME" {
			r.doubles = append(r.doubles, v)
			break
		}
	}
	for _, ev := range e.history.Events() {
		if (ev.Op == history.Lock || ev.Op == history.TryLock) && ev.Outcome == history.OK {
			r.holds++
		}
	}
	if e.held[1].Load() == 0 {
		r.idle++
	}
}
