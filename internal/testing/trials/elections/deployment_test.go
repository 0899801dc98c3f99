package elections

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/trials/serve"
	"github.com/golocker/locker/memory"
)

// patience decides between slow and hung.
const patience = 60 * time.Second

const candidates = 5

// kind is a way in which a term ends.
type kind string

const (
	resigns  kind = "resign"
	restarts kind = "rolling restart"
	crashes  kind = "SIGKILL"
	stops    kind = "SIGSTOP"
	cuts     kind = "connections cut"
	outages  kind = "server restarted"
)

// kinds is in the order of the report, with how often each comes.
var kinds = []struct {
	kind
	share int
}{{resigns, 13}, {restarts, 3}, {crashes, 1}, {stops, 1}, {cuts, 1}, {outages, 1}}

// deployment is a store.
type deployment struct {
	nodes  int // 0: in memory
	driver string
	brief  bool // it is tried in each test
}

var deployments = []deployment{
	{0, "", true},
	{1, "goredis", true}, {1, "redigo", false}, {1, "rueidis", false},
	{3, "goredis", false}, {3, "redigo", false}, {3, "rueidis", false},
}

func (d deployment) String() string {
	switch d.nodes {
	case 0:
		return "memory"
	case 1:
		return "single, " + d.driver
	}
	return fmt.Sprintf("Redlock of %d, %s", d.nodes, d.driver)
}

// contest is one deployment with five candidates for an election, or with five processes that hand on a lock with Lock
// and Unlock alone. The second is beside the first, for comparison.
type contest struct {
	*testing.T
	deployment
	judge   *judge
	all     []candidate
	start   func(who int) candidate
	proxies [][]*fault.Proxy // by candidate and server
}

// office is one deployment with its contests.
type office struct {
	*testing.T
	deployment
	servers  []*redistest.Server
	election *contest
	bare     *contest
}

// play lets terms end in all ways until there were enough, and returns what the judges saw. 0 terms are a few, without
// a comparison.
func (d deployment) play(t *testing.T, terms int) (election, bare *judge) {
	o := &office{T: t, deployment: d}
	o.open()
	both := []*contest{o.election, o.bare}
	if terms == 0 {
		both = both[:1]
	}
	for _, c := range both {
		for who := range candidates {
			c.all = append(c.all, c.start(who))
		}
	}
	var plan []kind
	for len(plan) < terms {
		for _, k := range kinds {
			for range k.share {
				plan = append(plan, k.kind)
			}
		}
	}
	if terms == 0 {
		plan = []kind{resigns, restarts, resigns, crashes, resigns}
	} else {
		rand.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
		plan = plan[:terms]
	}
	for _, k := range plan {
		if d.nodes == 0 && (k == stops || k == cuts || k == outages) {
			k = resigns // nothing of that can happen in memory
		}
		if k == outages {
			o.restartServer()
			continue
		}
		o.election.end(k)
		if terms > 0 && (k == resigns || k == restarts) {
			o.bare.end(k)
		}
	}
	for _, c := range both {
		for _, one := range c.all {
			one.end()
		}
	}
	for _, c := range both {
		for _, one := range c.all {
			one.wait()
		}
	}
	return o.election.judge, o.bare.judge
}

// open starts the servers. They keep their data when they are killed, because a lock that is forgotten has two holders:
// that is what the restart guard is for, and other trials.
func (o *office) open() {
	for range o.nodes {
		o.servers = append(o.servers, redistest.Start(o.T, "--appendonly", "yes", "--appendfsync", "always"))
	}
	store := memory.NewBackend()
	open := func(isBare bool) *contest {
		c := &contest{T: o.T, deployment: o.deployment, judge: newJudge()}
		if o.nodes == 0 {
			c.start = func(who int) candidate { return startLocal(o.T, who, isBare, store, c.judge) }
			return c
		}
		var urls []string
		for range candidates {
			url, proxies := o.connect()
			urls, c.proxies = append(urls, url), append(c.proxies, proxies)
		}
		addr := serve.TCP(o.T, func(conn net.Conn) { c.judge.serve(conn) })
		c.start = func(who int) candidate {
			return startProcess(o.T, plan{Who: who, Bare: isBare, URL: urls[who], Judge: addr})
		}
		return c
	}
	o.election, o.bare = open(false), open(true)
}

// connect returns the URL of the store for one candidate, and its ways to the servers.
func (o *office) connect() (url string, proxies []*fault.Proxy) {
	var hosts []string
	for _, s := range o.servers {
		p := fault.New(o.T, s.Addr())
		proxies, hosts = append(proxies, p), append(hosts, p.Addr())
	}
	scheme := "redis+"
	if o.nodes > 1 {
		scheme = "redlock+"
	}
	return scheme + o.driver + "://" + strings.Join(hosts, ","), proxies
}

// restartServer kills a server, and starts it again.
func (o *office) restartServer() {
	o.Helper()
	now := o.election.await()
	o.election.judge.ending(now, outages)
	s := o.servers[rand.IntN(len(o.servers))]
	s.Kill()
	s.Restart()
	o.election.all[now.who].resign() // if it has survived that
	o.election.judge.await(o.T, now.term)
	o.election.judge.disturbed()
	o.bare.judge.disturbed()
}

// await returns the leader, when another candidate waits for it to go.
func (c *contest) await() (now reign) {
	c.Helper()
	c.judge.await(c.T, 0)
	c.judge.awaitAnother(c.T)
	return c.judge.await(c.T, 0)
}

// end ends the term of the leader, and waits for the next one.
func (c *contest) end(k kind) {
	c.Helper()
	if k == restarts {
		c.replaceAll()
		return
	}
	now := c.await()
	leader := c.all[now.who]
	c.judge.ending(now, k)
	switch k {
	case resigns:
		leader.resign()
		c.judge.await(c.T, now.term)
	case crashes:
		leader.kill()
		c.judge.await(c.T, now.term)
		leader.wait()
		c.all[now.who] = c.start(now.who)
	case stops:
		leader.stop(true)
		c.judge.await(c.T, now.term)
		leader.stop(false)
	case cuts:
		c.cutOff(now)
	}
}

// replaceAll is a rolling restart: each candidate ends, the leader among them, and another process takes its place. The
// next one ends when that process takes part, as with a check for readiness.
func (c *contest) replaceAll() {
	c.Helper()
	for who, one := range c.all {
		now := c.judge.await(c.T, 0)
		if now.who == who {
			<-time.After(settling) // the process that has just begun takes the processor from the next leader
			now = c.await()
			c.judge.ending(now, restarts)
		}
		one.end()
		one.wait()
		c.judge.waits(who, false)
		c.all[who] = c.start(who)
		if now.who == who {
			c.judge.await(c.T, now.term)
		}
		c.judge.awaitCampaign(c.T, who)
	}
}

// cutOff keeps the leader from the servers until another one leads.
func (c *contest) cutOff(now reign) {
	for _, p := range c.proxies[now.who] {
		p.Refuse(true)
		p.Cut()
	}
	c.judge.await(c.T, now.term)
	for _, p := range c.proxies[now.who] {
		p.Refuse(false)
	}
}
