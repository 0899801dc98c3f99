package single_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// The subscription ends while clients wait, in each way that it can. All of them get the lock soon.
func TestSubscriptionEndsWhileWaiting(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, s *redistest.Server, p *fault.Proxy){
		"killed by the server": func(t *testing.T, s *redistest.Server, _ *fault.Proxy) {
			s.Cmd(t, "CLIENT", "KILL", "TYPE", "pubsub")
		},
		"all connections cut": func(_ *testing.T, _ *redistest.Server, p *fault.Proxy) { p.Cut() },
		"killed, and SUBSCRIBE held": func(t *testing.T, s *redistest.Server, p *fault.Proxy) {
			p.Handle(func(r fault.Request) fault.Action {
				if r.Is("SUBSCRIBE") {
					return fault.Hold
				}
				return fault.Pass
			})
			s.Cmd(t, "CLIENT", "KILL", "TYPE", "pubsub")
		},
		"killed, and SUBSCRIBE swallowed": func(t *testing.T, s *redistest.Server, p *fault.Proxy) {
			p.Handle(func(r fault.Request) fault.Action {
				if r.Is("SUBSCRIBE") {
					return fault.Drop
				}
				return fault.Pass
			})
			s.Cmd(t, "CLIENT", "KILL", "TYPE", "pubsub")
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			each, bound := eachDriver, heartbeat
			if name == "killed by the server" { // all notice that at once, subscribe again, and look
				bound = 0
			}
			if strings.Contains(name, "SUBSCRIBE") { // takes seconds, and is the inbox's affair, not the driver's
				each = anyDriver
			}
			each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				promptly(t, bound, func() time.Duration { return servedAfter(t, build, way) })
			})
		})
	}
}

// servedAfter lets clients wait, ends their subscriptions by way, and returns how long after a release the last of them
// has the lock.
func servedAfter(t *testing.T, build func(t testing.TB, addr string) drivers.Driver,
	way func(t *testing.T, s *redistest.Server, p *fault.Proxy)) (last time.Duration) {
	s := redistest.Start(t)
	p := fault.New(t, s.Addr())
	lease := mustTry(t, closing(t, single.New(build(t, s.Addr()))))
	var results []<-chan outcome
	const n = 3
	for range n {
		results = append(results, lockLater(t, closing(t, single.New(build(t, p.Addr())))))
	}
	listening(t, s, n)
	way(t, s, p)
	released := time.Now()
	steady.Unlock(t, lease)
	served := make(chan time.Time, n)
	for _, r := range results {
		go func() {
			o := <-r
			if o.err != nil {
				t.Error(o.err)
			} else if err := o.lease.Unlock(context.WithoutCancel(t.Context())); err != nil &&
				!errors.Is(err, locker.ErrUnavailable) {
				t.Error(err)
			}
			served <- o.at
		}()
	}
	for range results {
		last = max(last, (<-served).Sub(released))
	}
	p.Release()
	nothingLeft(t, s)
	return last
}

// A server loses everything while clients wait. Each of them takes its place again, and gets the lock.
func TestServerRestartedEmptyWhileTenWait(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		promptly(t, heartbeat, func() time.Duration { return servedAfterRestart(t, build, 10) })
	})
}

// servedAfterRestart lets n clients wait, and returns how long after the restart of the server the last of them has had
// the lock.
func servedAfterRestart(t *testing.T, build func(t testing.TB, addr string) drivers.Driver, n int) time.Duration {
	s := redistest.Start(t)
	holder := closing(t, single.New(build(t, s.Addr())))
	old := mustTry(t, holder, locker.TTL(6*time.Second)) // its loss is noticed soon
	var inside, served atomic.Int32
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range n {
		c := closing(t, single.New(build(t, s.Addr())))
		wg.Go(func() {
			l, err := c.Lock(ctx, "k")
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) > 1 {
				t.Error("two have the lock")
			}
			served.Add(1)
			<-time.After(5 * time.Millisecond)
			inside.Add(-1)
			steady.Unlock(t, l)
		})
	}
	listening(t, s, n)
	s.Restart()
	up := time.Now()
	wg.Wait()
	took := time.Since(up)
	if served.Load() != int32(n) {
		t.Errorf("%d of %d were served", served.Load(), n)
	}
	<-old.Done()
	nothingLeft(t, s)
	return took
}
