package faults

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/internal/testing/trials/history"
)

// hangLimit decides between slow and hung.
const hangLimit = 30 * time.Second

// testbed is what a trial runs on: servers, and in an episode players, and for each pair of them a proxy between.
type testbed struct {
	*testing.T
	random   *rand.Rand // of the episode's own goroutine
	short    time.Duration
	servers  []*redistest.Server
	replicas []*redistest.Server // of the servers, if they are independent and have some
	cluster  *redistest.Cluster  // of all servers; nil: they are independent
	sentinel *redistest.Server   // which watches over two servers, master and replica; nil: they are independent
	bus      *redistest.Bus      // of the cluster, if that can fail
	clocks   []*testserver.Clock // of the servers, if they can be moved
	proxies  [][]*fault.Proxy    // by player and node; players may share some
	keys     []string            // of the locks
	local    []*player           // they come first
	children []*process
	stopped  map[int]bool // players whose processes were stopped
	resource *resource
	history  *history.History
	injected atomic.Int64

	witnesses []*witness
	dismiss   func() // ends the witnesses

	admins []redis.Conn
}

// do sends a command to a server, past the proxies and whatever the server refuses to others.
func (b *testbed) do(node int, args ...any) any {
	b.Helper()
	reply, err := b.try(node, args...)
	if err != nil {
		b.Fatalf("%v: %v", args, err)
	}
	return reply
}

func (b *testbed) try(node int, args ...any) (any, error) {
	return b.admin(node).Do(fmt.Sprint(args[0]), args[1:]...)
}

// admin returns a connection that is kept over the episode: a new one might be refused.
func (b *testbed) admin(node int) redis.Conn {
	b.Helper()
	if c := b.admins[node]; c != nil && c.Err() == nil {
		return c
	}
	c, err := redis.Dial("unix", b.servers[node].Socket(), redis.DialReadTimeout(hangLimit))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	b.admins[node] = c
	return c
}

// atomically sends commands as one transaction.
func (b *testbed) atomically(node int, cmds ...[]any) {
	b.Helper()
	c := b.admin(node)
	_ = c.Send("MULTI")
	for _, cmd := range cmds {
		_ = c.Send(fmt.Sprint(cmd[0]), cmd[1:]...)
	}
	if _, err := redis.Values(c.Do("EXEC")); err != nil {
		b.Fatalf("%v: %v", cmds, err)
	}
	b.injected.Add(1)
}

// each calls f for all of the nodes at once and waits.
func each(nodes []int, f func(node int)) {
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() { f(n) })
	}
	wg.Wait()
}

func (b *testbed) players() []int {
	ids := make([]int, len(b.proxies))
	for i := range ids {
		ids[i] = i
	}
	return ids
}

// some returns a part of the players: at least one, not all.
func (b *testbed) some() []int {
	return b.random.Perm(len(b.proxies))[:1+b.random.IntN(len(b.proxies)-1)]
}

// links calls f for the proxies between players and nodes.
func (b *testbed) links(players, nodes []int, f func(*fault.Proxy)) {
	for _, p := range players {
		for _, n := range nodes {
			f(b.proxies[p][n])
		}
	}
}

// concernsLocks reports whether a request is about locks: a script, or a release by a command of the server.
func concernsLocks(r fault.Request) bool { return r.Is("EVAL", "EVALSHA", "DELEX", "DELIFEQ") }

// handle lets choose decide about a share of the requests about locks on links, and about all raises: they are few, and
// come only where the rest of their attempt has got through.
func (b *testbed) handle(players, nodes []int, share float64, choose func() fault.Action) {
	b.links(players, nodes, func(p *fault.Proxy) {
		p.Handle(func(r fault.Request) fault.Action {
			if !concernsLocks(r) || !raise(r) && rand.Float64() >= share {
				return fault.Pass
			}
			b.injected.Add(1)
			return choose()
		})
	})
}

// heal makes links faultless again. What was held arrives now.
func (b *testbed) heal(players, nodes []int) {
	b.links(players, nodes, func(p *fault.Proxy) {
		p.Handle(nil)
		p.Refuse(false)
		p.Release()
	})
}

// caught calls f while requests of all kinds are under way to the nodes, some before and some after their execution.
func (b *testbed) caught(nodes []int, f func()) {
	b.handle(b.players(), nodes, 1, func() fault.Action {
		if rand.IntN(2) == 0 {
			return fault.Hold
		}
		return fault.HoldReply
	})
	pause(10*time.Millisecond, 50*time.Millisecond)
	f()
	b.heal(b.players(), nodes)
}

// pause waits, because faults last for a while.
func pause(from, to time.Duration) { time.Sleep(from + rand.N(to-from+1)) }

// eventually waits until cond holds, and reports false if that takes too long.
func eventually(limit time.Duration, cond func() bool) bool {
	for end := time.Now().Add(limit); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// eventually waits until cond holds, and fails the test if that takes too long.
func (b *testbed) eventually(what string, cond func() bool) {
	b.Helper()
	if !eventually(hangLimit, cond) {
		b.Errorf("not within %v: %s", hangLimit, what)
	}
}

// locks returns the locks that the servers have: not what remains of them (counters, tombstones), nor queues, which end
// by themselves and give nothing to those who are not there.
func (b *testbed) locks() (found []string) {
	for i := range b.servers {
		keys, err := redis.Strings(b.try(i, "KEYS", "lock:*"))
		if err != nil {
			found = append(found, fmt.Sprintf("node %d: %v", i, err))
		}
		for _, key := range keys {
			if left, _ := redis.Int(b.try(i, "PTTL", key)); left > 0 {
				found = append(found, fmt.Sprintf("%s on node %d for %d ms", key, i, left))
			}
		}
	}
	return found
}
