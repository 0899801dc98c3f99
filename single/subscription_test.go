package single_test

import (
	"context"
	"errors"
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
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			bound := heartbeat
			if name == "killed by the server" { // all notice that at once, subscribe again, and look
				bound = 0
			}
			eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
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
