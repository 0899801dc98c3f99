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

// office is one deployment with its candidates.
type office struct {
	*testing.T
	deployment
	judge   *judge
	servers []*redistest.Server
	proxies [][]*fault.Proxy // by candidate and server
	start   func(who int, bare bool) candidate
	all     []candidate
}

// play lets terms end in all ways until there were enough, and returns what the judge saw. 0 terms are a few.
func (d deployment) play(t *testing.T, terms int) *judge {
	o := &office{T: t, deployment: d, judge: newJudge()}
	o.open()
	if terms > 0 {
		handovers := o.handOver()
		o.judge = newJudge()
		o.judge.handovers = handovers
	}
	for who := range candidates {
		o.all = append(o.all, o.start(who, false))
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
	now := o.judge.await(t, 0)
	for _, k := range plan {
		now = o.end(now, k)
	}
	for _, c := range o.all {
		c.end()
	}
	for _, c := range o.all {
		c.wait()
	}
	return o.judge
}

// open starts the servers. They keep their data when they are killed, because a lock that is forgotten has two holders:
// that is what the restart guard is for, and other trials.
func (o *office) open() {
	if o.nodes == 0 {
		store := memory.NewBackend()
		o.start = func(who int, bare bool) candidate { return startLocal(o.T, who, bare, store, o.judge) }
		return
	}
	for range o.nodes {
		o.servers = append(o.servers, redistest.Start(o.T, "--appendonly", "yes", "--appendfsync", "always"))
	}
	addr := serve.TCP(o.T, func(conn net.Conn) { o.judge.serve(conn) })
	var urls []string
	for range candidates {
		var proxies []*fault.Proxy
		var hosts []string
		for _, s := range o.servers {
			p := fault.New(o.T, s.Addr())
			proxies, hosts = append(proxies, p), append(hosts, p.Addr())
		}
		scheme := "redis+"
		if o.nodes > 1 {
			scheme = "redlock+"
		}
		o.proxies = append(o.proxies, proxies)
		urls = append(urls, scheme+o.driver+"://"+strings.Join(hosts, ","))
	}
	o.start = func(who int, bare bool) candidate {
		return startProcess(o.T, plan{Who: who, Bare: bare, URL: urls[who], Judge: addr})
	}
}

// handOver measures for how long nobody holds a lock that five processes hand on, with Lock and Unlock alone.
func (o *office) handOver() []time.Duration {
	var all []candidate
	for who := range candidates {
		all = append(all, o.start(who, true))
	}
	now := o.judge.await(o.T, 0)
	for range 10 * candidates {
		o.judge.ending(now, resigns)
		all[now.who].resign()
		now = o.judge.await(o.T, now.term)
	}
	for _, c := range all {
		c.end()
		c.wait()
	}
	return o.judge.gaps[resigns]
}

// end ends the term of the leader, and returns the next one.
func (o *office) end(now reign, k kind) reign {
	o.Helper()
	if o.nodes == 0 && (k == stops || k == cuts || k == outages) {
		k = resigns // nothing of that can happen in memory
	}
	leader := o.all[now.who]
	o.judge.ending(now, k)
	switch k {
	case resigns:
		leader.resign()
	case restarts:
		return o.replaceAll(now)
	case crashes:
		leader.kill()
		next := o.judge.await(o.T, now.term)
		leader.wait()
		o.all[now.who] = o.start(now.who, false)
		return next
	case stops:
		leader.stop(true)
		next := o.judge.await(o.T, now.term)
		leader.stop(false)
		return next
	case cuts:
		return o.cutOff(now)
	case outages:
		s := o.servers[rand.IntN(len(o.servers))]
		s.Kill()
		s.Restart()
		leader.resign() // if it has survived that
	}
	return o.judge.await(o.T, now.term)
}

// replaceAll is a rolling restart: each candidate ends, the leader among them, and another process takes its place. The
// next one ends when that process takes part, as with a check for readiness.
func (o *office) replaceAll(now reign) reign {
	for who, c := range o.all {
		now = o.judge.await(o.T, now.term-1)
		leads := who == now.who
		if leads {
			o.judge.ending(now, restarts)
		}
		c.end()
		c.wait()
		o.judge.waits(who, false)
		o.all[who] = o.start(who, false)
		if leads {
			now = o.judge.await(o.T, now.term)
		}
		o.judge.awaitCampaign(o.T, who)
	}
	return now
}

// cutOff keeps the leader from the servers until another one leads.
func (o *office) cutOff(now reign) reign {
	for _, p := range o.proxies[now.who] {
		p.Refuse(true)
		p.Cut()
	}
	next := o.judge.await(o.T, now.term)
	for _, p := range o.proxies[now.who] {
		p.Refuse(false)
	}
	return next
}
