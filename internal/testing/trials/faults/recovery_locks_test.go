package faults

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/judge"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/middleware/audit"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// holders is the number of clients, each with a goroutine for each lock. The last one does not wait for it.
const holders = 3

// rest is longer than nodes rest: docs/safety.md.
const rest = lapseTTL + lapseTTL/50 + 2*time.Second

// across is one lock across one lapse.
type across struct {
	key     string
	history *history.History
	// held counts acquisitions: before the lapse, and after it.
	held [2]atomic.Int32
}

// lapsed is what came of a trial.
type lapsed struct {
	holds   int
	doubles []history.Violation // one for each lock that had two holders
	idle    int                 // locks that nobody had after the lapse
}

// run runs the trial and judges it.
func (tr trial) run(t *testing.T) (r lapsed) {
	b := newTestbed(t, tr.nodes, tr.kind, rand.Uint64(), false)
	var clients []*locker.Client
	for i := range holders {
		clients = append(clients, tr.open(b, i == 0))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var over atomic.Int32 // 1: the lapse is over
	var workers sync.WaitGroup
	locks := make([]*across, tr.locks)
	for i := range locks {
		locks[i] = &across{key: fmt.Sprint("episode/", i), history: history.New()}
		for id, c := range clients {
			l := locks[i].history.Client(id, c)
			workers.Go(func() { locks[i].contend(ctx, l, id == holders-1, &over) })
		}
	}
	b.eventually("locks that are in use", func() bool {
		return !slices.ContainsFunc(locks, func(l *across) bool { return l.held[0].Load() == 0 })
	})
	nodes := rand.Perm(tr.nodes)[:tr.nodes/2+1+rand.IntN(tr.nodes-tr.nodes/2)]
	tr.inject(b, nodes, 0)
	over.Store(1)
	wait := lapseTTL + lapseTTL/4
	if tr.guarded {
		wait += rest
	}
	time.Sleep(wait)
	cancel()
	workers.Wait()
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Log(err) // of a server that has been replaced
		}
	}
	for _, l := range locks {
		l.judge(&r)
	}
	return r
}

// open returns a client. The servers are new, so the first client says so.
func (tr trial) open(b *testbed, first bool) *locker.Client {
	var ds []drivers.Driver
	for i, s := range b.servers {
		addr := s.Addr()
		if tr.moves {
			addr = b.proxies[0][i].Addr()
		}
		d, err := drivers.Open(b.Context(), tr.driver, drivers.Config{Network: "tcp", Addr: addr, Timeout: exchangeTimeout})
		if err != nil {
			b.Fatal(err)
		}
		ds = append(ds, d)
	}
	guard := time.Duration(0)
	if tr.guarded {
		guard = lapseTTL
	}
	// bootstrapped says that the servers are new, until they have heard it. A busy machine may take its time.
	bootstrapped := func(bootstrap func() error) {
		if tr.guarded && first {
			b.eventually("a bootstrap", func() bool { return bootstrap() == nil })
		}
	}
	if tr.nodes == 1 {
		opts := []single.Option{single.Timeout(exchangeTimeout), single.Guard(guard)}
		if tr.waits {
			opts = append(opts, single.WaitReplicas(1, exchangeTimeout/4))
		}
		bootstrapped(func() error { return single.Bootstrap(b.Context(), ds[0], opts...) })
		return single.New(ds[0], opts...)
	}
	opts := []redlock.Option{redlock.Timeout(exchangeTimeout), redlock.Budget(exchangeTimeout / 2), redlock.Guard(guard),
		redlock.Logger(slog.New(slog.DiscardHandler))}
	bootstrapped(func() error { return redlock.Bootstrap(b.Context(), ds, opts...) })
	return redlock.New(ds, opts...)
}

// contend acquires the lock, holds it for a part of its TTL, and releases it, again and again. A waiter asks again when
// the last holder's TTL is over, so second holders are mostly clients that come and try.
func (a *across) contend(ctx context.Context, l locker.Locker, tries bool, over *atomic.Int32) {
	lock, pause := l.Lock, 50*time.Millisecond
	if tries {
		lock, pause = l.TryLock, lapseTTL/5
	}
	for ctx.Err() == nil {
		opts := []locker.Option{locker.TTL(lapseTTL)}
		if rand.IntN(4) > 0 { // renewed leases notice sooner that they are lost
			opts = append(opts, locker.NoRenewal())
		}
		attempt, cancel := context.WithTimeout(ctx, hangLimit)
		lease, err := lock(attempt, a.key, opts...)
		cancel()
		if err != nil {
			wait(ctx, nil, rand.N(pause)) // servers that are down or rest refuse at once
			continue
		}
		a.held[over.Load()].Add(1)
		wait(ctx, lease.Done(), lapseTTL/4+rand.N(lapseTTL)) // some leases end by themselves
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

// judge adds the lock to r. Its history must have ended.
func (a *across) judge(r *lapsed) {
	a.history.Wait()
	for _, v := range a.history.Check(judge.Options{}) {
		if v.Rule == "ME" {
			r.doubles = append(r.doubles, v)
			break
		}
	}
	for _, ev := range a.history.Events() {
		if (ev.Op == history.Lock || ev.Op == history.TryLock) && ev.Outcome == audit.OK {
			r.holds++
		}
	}
	if a.held[1].Load() == 0 {
		r.idle++
	}
}
