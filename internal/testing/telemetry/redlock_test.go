package telemetry_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/redlock"
)

// deployment is three simulated nodes, a, b and c, which answer after 2, 4 and 6 milliseconds.
type deployment struct {
	nodes  [3]*simnode.Node
	state  [3]atomic.Value // "dead" or "hung"; otherwise the node works
	locker *locker.Client
}

func newDeployment(r *recorder) *deployment {
	d := &deployment{}
	var ds []drivers.Driver
	for i := range d.nodes {
		d.nodes[i] = simnode.New()
		d.state[i].Store("")
		way := time.Duration(i+1) * time.Millisecond
		ds = append(ds, d.nodes[i].Driver(func(ctx context.Context, cmds []drivers.Command,
			execute func() []drivers.Reply) ([]drivers.Reply, error) {
			for _, cmd := range cmds {
				for _, token := range wire.Attempts(cmd) {
					r.tokens.note(token)
				}
			}
			switch d.state[i].Load() {
			case "dead":
				return nil, drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
			case "hung":
				<-ctx.Done()
				return nil, io.EOF
			}
			time.Sleep(way)
			defer time.Sleep(way)
			return execute(), nil
		}))
	}
	d.locker = redlock.New(ds, redlock.Names("a", "b", "c"), redlock.Logger(slog.New(slog.DiscardHandler)))
	return d
}

var redlockScenarios = []struct {
	name           string
	do             func(r *recorder, d *deployment, l locker.Locker)
	spans, metrics string
}{
	{"one is slower than the majority", func(r *recorder, d *deployment, l locker.Locker) {
		lease := must(l.TryLock(r.request(), key))
		time.Sleep(time.Second)
		_ = lease.Extend(r.request())
		time.Sleep(time.Second)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 6ms-10ms in request
			attempts=1 fence=946684799942656 operation=trylock outcome=acquired
			8ms vote: duration=0.002 node.name=a operation=acquire outcome=agreed
			10ms vote: duration=0.004 node.name=b operation=acquire outcome=agreed
			10ms vote: duration=0.004 node.name=c operation=acquire outcome=pending
			10ms attempt: duration=0.004 outcome=acquired
		locker.extend 1.01s-1.014s in request of locker.lock
			operation=extend outcome=extended
			1.012s vote: duration=0.002 node.name=a operation=extend outcome=agreed
			1.014s vote: duration=0.004 node.name=b operation=extend outcome=agreed
			1.014s vote: duration=0.004 node.name=c operation=extend outcome=pending
		locker.unlock 2.014s-2.018s in request of locker.lock
			held=2.008 operation=unlock outcome=unlocked remaining=8.894 renewals.failed=0 renewals=0
			2.016s vote: duration=0.002 node.name=a operation=release outcome=agreed
			2.018s vote: duration=0.004 node.name=b operation=release outcome=agreed
			2.018s vote: duration=0.004 node.name=c operation=release outcome=pending
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 2.008
		lease.remaining {} 1: 8.894
		lock.acquire.duration {operation=trylock outcome=acquired} 1: 0.004
		lock.attempts {operation=trylock outcome=acquired} 1: 1
		node.vote.duration {node.name=a operation=acquire outcome=agreed} 1: 0.002
		node.vote.duration {node.name=a operation=extend outcome=agreed} 1: 0.002
		node.vote.duration {node.name=a operation=release outcome=agreed} 1: 0.002
		node.vote.duration {node.name=b operation=acquire outcome=agreed} 1: 0.004
		node.vote.duration {node.name=b operation=extend outcome=agreed} 1: 0.004
		node.vote.duration {node.name=b operation=release outcome=agreed} 1: 0.004
		node.vote.duration {node.name=c operation=acquire outcome=agreed} 1: 0.006
		node.vote.duration {node.name=c operation=extend outcome=agreed} 1: 0.006
		node.vote.duration {node.name=c operation=release outcome=agreed} 1: 0.006
	`},
	{"a node is down", func(r *recorder, d *deployment, l locker.Locker) {
		d.state[0].Store("dead")
		lease := must(l.TryLock(r.request(), key))
		time.Sleep(4 * time.Second) // for a renewal
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 6ms-16ms in request
			attempts=1 fence=946684800008192 operation=trylock outcome=acquired
			6ms vote: duration=0 error.type=unavailable node.name=a operation=acquire outcome=error
			10ms vote: duration=0.004 node.name=b operation=acquire outcome=agreed
			12ms vote: duration=0.006 node.name=c operation=acquire outcome=agreed
			16ms attempt: duration=0.01 outcome=acquired
		locker.unlock 4.016s-4.022s in request of locker.lock
			held=4.006 operation=unlock outcome=unlocked remaining=9.221333333 renewals.failed=0 renewals=1
			4.02s vote: duration=0.004 node.name=b operation=release outcome=agreed
			4.022s vote: duration=0.006 node.name=c operation=release outcome=agreed
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 4.006
		lease.remaining {} 1: 9.221
		lease.renewals {outcome=renewed} 1
		lock.acquire.duration {operation=trylock outcome=acquired} 1: 0.01
		lock.attempts {operation=trylock outcome=acquired} 1: 1
		node.vote.duration {error.type=unavailable node.name=a operation=acquire outcome=error} 1: 0
		node.vote.duration {node.name=b operation=acquire outcome=agreed} 1: 0.004
		node.vote.duration {node.name=b operation=extend outcome=agreed} 1: 0.004
		node.vote.duration {node.name=b operation=release outcome=agreed} 1: 0.004
		node.vote.duration {node.name=c operation=acquire outcome=agreed} 1: 0.006
		node.vote.duration {node.name=c operation=extend outcome=agreed} 1: 0.006
		node.vote.duration {node.name=c operation=release outcome=agreed} 1: 0.006
	`},
	{"a node hangs", func(r *recorder, d *deployment, l locker.Locker) {
		d.state[0].Store("hung")
		lease := must(l.TryLock(r.request(), key))
		time.Sleep(time.Second)
		_ = lease.Unlock(r.request())
	}, `
		locker.lock 6ms-16ms in request
			attempts=1 fence=946684800008192 operation=trylock outcome=acquired
			10ms vote: duration=0.004 node.name=b operation=acquire outcome=agreed
			12ms vote: duration=0.006 node.name=c operation=acquire outcome=agreed
			16ms vote: duration=0.01 node.name=a operation=acquire outcome=pending
			16ms attempt: duration=0.01 outcome=acquired
		locker.unlock 1.016s-1.023s in request of locker.lock
			held=1.007 operation=unlock outcome=unlocked remaining=8.888 renewals.failed=0 renewals=0
			1.02s vote: duration=0.004 node.name=b operation=release outcome=agreed
			1.022s vote: duration=0.006 node.name=c operation=release outcome=agreed
	`, `
		lease.active {} 0
		lease.hold.duration {outcome=unlocked} 1: 1.007
		lease.remaining {} 1: 8.888
		lock.acquire.duration {operation=trylock outcome=acquired} 1: 0.01
		lock.attempts {operation=trylock outcome=acquired} 1: 1
		node.vote.duration {error.type=unavailable node.name=a operation=acquire outcome=error} 1: 5
		node.vote.duration {node.name=b operation=acquire outcome=agreed} 1: 0.004
		node.vote.duration {node.name=b operation=release outcome=agreed} 1: 0.004
		node.vote.duration {node.name=c operation=acquire outcome=agreed} 1: 0.006
		node.vote.duration {node.name=c operation=release outcome=agreed} 1: 0.006
	`},
	{"no quorum", func(r *recorder, d *deployment, l locker.Locker) {
		d.state[1].Store("dead")
		d.state[2].Store("dead")
		_, _ = l.Lock(r.request(), key)
	}, `
		locker.lock 6ms-6ms in request Error: no quorum: acquire: 0 of 3 nodes agreed, 2 are needed` +
		`: a not heard; b failed (dial tcp: connection refused); c failed (dial tcp: connection refused)
			attempts=1 error.type=no_quorum operation=lock outcome=error
			6ms vote: duration=0 error.type=unavailable node.name=b operation=acquire outcome=error
			6ms vote: duration=0 error.type=unavailable node.name=c operation=acquire outcome=error
			6ms vote: duration=0 node.name=a operation=acquire outcome=pending
			6ms attempt: duration=0 error.type=no_quorum outcome=error
	`, `
		lock.acquire.duration {error.type=no_quorum operation=lock outcome=error} 1: 0
		lock.attempts {error.type=no_quorum operation=lock outcome=error} 1: 1
		node.vote.duration {error.type=unavailable node.name=b operation=acquire outcome=error} 1: 0
		node.vote.duration {error.type=unavailable node.name=c operation=acquire outcome=error} 1: 0
		node.vote.duration {node.name=a operation=acquire outcome=agreed} 1: 0.002
	`},
	{"the quorum fails under a lease", func(r *recorder, d *deployment, l locker.Locker) {
		lease := must(l.Lock(r.request(), key, locker.TTL(3*time.Second)))
		time.Sleep(time.Second / 2)
		d.state[1].Store("dead")
		d.state[2].Store("dead")
		<-lease.Done()
		time.Sleep(time.Second)
	}, `
		locker.lock 6ms-10ms in request
			attempts=1 fence=946684799942656 operation=lock outcome=acquired
			8ms vote: duration=0.002 node.name=a operation=acquire outcome=agreed
			10ms vote: duration=0.004 node.name=b operation=acquire outcome=agreed
			10ms vote: duration=0.004 node.name=c operation=acquire outcome=pending
			10ms attempt: duration=0.004 outcome=acquired
		locker.renew 1.006s-1.008s of locker.lock Error: no quorum: extend` +
		`: 1 of 3 nodes agreed, 2 are needed: b failed (dial tcp: connection refused)` +
		`; c failed (dial tcp: connection refused)
			error.type=no_quorum outcome=error
		locker.lost 2.943s-2.943s of locker.lock Error: lock lost: expired: the last renewal failed: no quorum: extend` +
		`: 1 of 3 nodes agreed, 2 are needed: b failed (dial tcp: connection refused)` +
		`; c failed (dial tcp: connection refused)
			error.type=lost held=2.933 lost.reason=expired
	`, `
		lease.active {} 0
		lease.hold.duration {lost.reason=expired outcome=lost} 1: 2.933
		lease.lost {lost.reason=expired} 1
		lease.renewals {error.type=no_quorum outcome=error} 7
		lock.acquire.duration {operation=lock outcome=acquired} 1: 0.004
		lock.attempts {operation=lock outcome=acquired} 1: 1
		node.vote.duration {error.type=unavailable node.name=b operation=extend outcome=error} 7: 0
		node.vote.duration {error.type=unavailable node.name=c operation=extend outcome=error} 7: 0
		node.vote.duration {node.name=a operation=acquire outcome=agreed} 1: 0.002
		node.vote.duration {node.name=a operation=extend outcome=agreed} 7: 0.014
		node.vote.duration {node.name=b operation=acquire outcome=agreed} 1: 0.004
		node.vote.duration {node.name=c operation=acquire outcome=agreed} 1: 0.006
	`},
}

func TestWhatIsRecordedOfRedlock(t *testing.T) {
	for _, s := range redlockScenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			spans, metrics := record(t, func(r *recorder) {
				d := newDeployment(r)
				// The clocks of the nodes reach the next quantum at 8 ms. If b answers first, its counter is lower than
				// c's, and there is a second round.
				time.Sleep(6 * time.Millisecond)
				s.do(r, d, r.wrap(d.locker))
				time.Sleep(10 * time.Second) // for late answers
				_ = d.locker.Close()
			})
			same(t, "spans", spans, s.spans)
			same(t, "metrics", metrics, s.metrics)
		})
	}
}
