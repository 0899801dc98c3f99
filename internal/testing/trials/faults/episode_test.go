package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/internal/testing/trials/history"
)

// episode is one fault in one placement.
type episode struct {
	kind  kind
	place placement
	seed  uint64
}

func (e episode) String() string { return fmt.Sprintf("%s/%v/%d", e.kind.name, e.place, e.seed) }

// These are the number of players, and the number of those in processes of their own.
const (
	players = 4
	apartly = 2
)

// newTestbed starts the servers. With skews, the clocks of nodes of a Redlock may differ, in every second testbed, so
// that many acquisitions need a second round, with raises.
func newTestbed(t *testing.T, nodes int, k kind, seed uint64, skews bool) *testbed {
	b := &testbed{
		T: t, random: rand.New(rand.NewPCG(seed, seed)), stopped: map[int]bool{},
		resource: newResource(),
	}
	b.short = 600*time.Millisecond + time.Duration(b.random.Int64N(int64(600*time.Millisecond)))
	if k.clustered {
		b.cluster = redistest.StartCluster(t, 3, k.replicated, k.args...)
		b.servers = b.cluster.Servers()
		if k.parted {
			b.bus = b.cluster.Bus(t)
		}
		b.admins = make([]redis.Conn, len(b.servers))
		return b
	}
	if k.watched {
		b.watch()
		return b
	}
	b.servers = make([]*redistest.Server, nodes)
	args := slices.Clone(k.args)
	if k.debug && !strings.Contains(redistest.Version(redistest.Binary(t)), " 6.") { // which allow it always
		args = append(args, "--enable-debug-command", "yes")
	}
	skewed := skews && !k.clock && nodes > 1 && testserver.NoClock() == "" && b.random.IntN(2) == 0
	for i := range nodes {
		var env []string
		if k.clock || skewed {
			var c *testserver.Clock
			c, env = testserver.NewClock(t.TempDir())
			b.clocks = append(b.clocks, c)
		}
		if skewed {
			b.clockIs(i, pick(b, 0, skew), 0)
		}
		b.servers[i] = redistest.StartWith(t, env, args...)
		b.admins = append(b.admins, nil)
		b.admin(i)
		if k.replicated { // before a client comes, because the first replica gives a server another history
			b.replicas = append(b.replicas, b.replica(b.servers[i]))
		}
	}
	if k.moves {
		b.proxies = make([][]*fault.Proxy, 1)
		for _, s := range b.servers {
			b.proxies[0] = append(b.proxies[0], fault.New(t, s.Addr()))
		}
	}
	return b
}

// replica starts a replica of a server, and returns when it has the server's data, and gets what is written.
func (b *testbed) replica(s *redistest.Server) *redistest.Server {
	b.Helper()
	r := redistest.StartReplica(b.T, s)
	r.Follow(b, s)
	b.eventually("a master that sends its writes to the replica", func() bool {
		info, _ := s.Do("INFO", "replication")
		return strings.Contains(fmt.Sprint(info), "state=online")
	})
	return r
}

// populate starts the players.
func (b *testbed) populate(e episode) {
	names := drivers.Names()
	switch {
	case b.cluster != nil:
		names = slices.Sorted(maps.Keys(clusterDrivers))
	case b.sentinel != nil:
		names = slices.Sorted(maps.Keys(sentinelDrivers))
	}
	long := time.Minute // long enough that a lock that was left behind is found at the end
	if e.kind.brief {
		long = b.short
	}
	addr := serveTCP(b.T, b.resource.serve)
	b.history = history.New()
	for i := range loads {
		b.keys = append(b.keys, fmt.Sprint("load/", i))
	}
	for id := range players {
		b.keys = append(b.keys, fmt.Sprint("held/", id), fmt.Sprint("extend/", id))
		p := plan{
			ID: id, Players: players, Driver: names[(id+int(e.seed))%len(names)],
			Short: b.short, Long: long, Resource: addr, Cluster: b.cluster != nil, Password: e.kind.password,
		}
		if e.place.nodes > 1 && b.random.IntN(3) == 0 {
			p.Driver = "mixed"
		}
		var links []*fault.Proxy
		for _, s := range b.servers {
			if e.kind.alone() {
				p.Nodes = append(p.Nodes, s.Addr())
				continue
			}
			links = append(links, fault.New(b.T, s.Addr()))
			p.Nodes = append(p.Nodes, links[len(links)-1].Addr())
		}
		if b.sentinel != nil {
			p.Nodes, p.Sentinel = []string{b.sentinel.Addr()}, true
		}
		b.proxies = append(b.proxies, links)
		if id >= players-apartly {
			b.children = append(b.children, startChild(b.T, p))
			b.stopped[id] = e.kind.clients
			continue
		}
		player := &player{plan: p}
		if err := player.start(b.history, b.resource); err != nil {
			b.Fatal(err)
		}
		b.local = append(b.local, player)
	}
}

// run runs the episode and judges it.
func (e episode) run(t *testing.T) *result {
	b := newTestbed(t, e.place.nodes, e.kind, e.seed, true)
	b.observe()
	b.populate(e)
	r := &result{episode: e}
	if !b.everybodyWorks(2) {
		r.fail("LIVE", "before the fault, a client got no lock within %v", hangLimit)
	}
	nodes := b.random.Perm(e.place.nodes)[:e.place.hit]
	d := time.Duration((0.1 + b.random.Float64()*max(0.4, float64(e.kind.most)-0.1)) * float64(b.short))
	r.from = b.history.Now()
	e.kind.inject(b, nodes, d)
	r.to = b.history.Now()
	// After the fault every client must make progress again.
	if !b.everybodyWorks(2) {
		r.fail("LIVE", "after the fault, a client got no lock within %v", hangLimit)
	}
	b.finish()
	var left []string
	if !eventually(hangLimit, func() bool { left = b.locks(); return len(left) == 0 }) {
		r.lapse("ORPHAN", "nobody holds anything, and after %v there are still %v", hangLimit, left)
	}
	b.acquireAll(r)
	r.accounts = b.settle()
	r.injected = int(b.injected.Load()) + b.refusals(r, nodes)
	r.judge(b)
	return r
}

// refusals returns how often the nodes have refused commands with the error of the fault.
func (b *testbed) refusals(r *result, nodes []int) (n int) {
	if r.kind.refusal == "" {
		return 0
	}
	if b.cluster != nil {
		nodes = nil
		for i := range b.servers {
			nodes = append(nodes, i)
		}
	}
	for _, i := range nodes {
		info, _ := redis.String(b.do(i, "INFO", "errorstats"), nil)
		if info == "" { // a server before Redis 6.2 does not count errors
			return 0
		}
		count, _ := strconv.Atoi(strings.TrimPrefix(field(info, "errorstat_"+r.kind.refusal), "count="))
		n += count
	}
	if n == 0 {
		r.fail("QUOTA", "no server has ever refused by %s", r.kind.refusal)
	}
	return n
}

// everybodyWorks waits until each player has acquired locks the given number of times more.
func (b *testbed) everybodyWorks(times int) bool {
	want := map[int]int{}
	for _, id := range b.players() {
		want[id] = b.resource.served(id) + times
	}
	return eventually(hangLimit, func() bool {
		for id, n := range want {
			if b.resource.served(id) < n {
				return false
			}
		}
		return true
	})
}

// finish ends all players, and leaves their clients open.
func (b *testbed) finish() {
	for _, c := range b.children {
		c.tell("finish")
	}
	var wg sync.WaitGroup
	for _, p := range b.local {
		wg.Go(p.finish)
	}
	wg.Wait()
	for _, c := range b.children {
		var answer string
		c.read(&answer)
	}
}

// acquireAll checks that a new client, which has not seen the fault, can acquire every lock.
func (b *testbed) acquireAll(r *result) {
	p := plan{ID: players, Driver: drivers.Names()[b.random.IntN(3)]}
	if b.cluster != nil {
		p.Driver, p.Cluster = "goredis", true
	}
	for _, s := range b.servers {
		p.Nodes = append(p.Nodes, s.Addr())
	}
	if b.sentinel != nil {
		p.Nodes, p.Driver, p.Sentinel = []string{b.sentinel.Addr()}, "goredis", true
	}
	client, shut, err := p.open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer shut()
	defer func() { _ = client.Close() }()
	l := b.history.Client(players, client)
	ctx, cancel := context.WithTimeout(b.Context(), hangLimit)
	defer cancel()
	for _, key := range b.keys {
		var lease locker.Lease
		if !eventually(hangLimit, func() bool { // repeated, because an answer may be late on a busy machine
			lease, err = l.Lock(ctx, key, locker.TTL(hangLimit))
			return err == nil || ctx.Err() != nil
		}) || err != nil {
			r.fail("LIVE", "everything is over, and %s cannot be had: %v", key, err)
			continue
		}
		if err := lease.Unlock(ctx); err != nil && !errors.Is(err, locker.ErrUnavailable) {
			r.fail("LIVE", "everything is over, and %s is not released: %v", key, err)
		}
	}
}

// settle closes all players and returns their accounts.
func (b *testbed) settle() (accounts []account) {
	for _, c := range b.children {
		c.tell("close")
	}
	ch := make(chan account, len(b.local))
	for _, p := range b.local {
		go func() { ch <- p.settle() }()
	}
	for range b.local {
		accounts = append(accounts, <-ch)
	}
	for _, c := range b.children {
		var a account
		c.read(&a)
		b.history.Add(a.Client, a.Lines)
		accounts = append(accounts, a)
	}
	b.history.Wait()
	return accounts
}
