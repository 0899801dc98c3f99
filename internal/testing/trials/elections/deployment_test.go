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
	all     []candidate
	start   func(who int) candidate

	// Five others hand on a lock with Lock and Unlock alone, at the same time, for comparison.
	bareJudge *judge
	bare      []candidate
	startBare func(who int) candidate
}

// play lets terms end in all ways until there were enough, and returns what the judge saw. 0 terms are a few.
func (d deployment) play(t *testing.T, terms int) *judge {
	o := &office{T: t, deployment: d, judge: newJudge(), bareJudge: newJudge()}
	o.open()
	for who := range candidates {
		o.all = append(o.all, o.start(who))
		if terms > 0 {
			o.bare = append(o.bare, o.startBare(who))
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
	now := o.judge.await(t, 0)
	for _, k := range plan {
		now = o.end(now, k)
		if k == resigns || k == restarts {
			o.handOver()
		}
	}
	all := append(o.all, o.bare...)
	for _, c := range all {
		c.end()
	}
	for _, c := range all {
		c.wait()
	}
	o.judge.handovers = o.bareJudge.gaps[resigns]
	o.judge.wrong = append(o.judge.wrong, o.bareJudge.wrong...)
	return o.judge
}

// open starts the servers. They keep their data when they are killed, because a lock that is forgotten has two holders:
// that is what the restart guard is for, and other trials.
func (o *office) open() {
	if o.nodes == 0 {
		store := memory.NewBackend()
		o.start = func(who int) candidate { return startLocal(o.T, who, false, store, o.judge) }
		o.startBare = func(who int) candidate { return startLocal(o.T, who, true, store, o.bareJudge) }
		return
	}
	for range o.nodes {
		o.servers = append(o.servers, redistest.Start(o.T, "--appendonly", "yes", "--appendfsync", "always"))
	}
	var urls, bareURLs []string
	for range candidates {
		url, proxies := o.connect()
		urls, o.proxies = append(urls, url), append(o.proxies, proxies)
		url, _ = o.connect() // as far away, but not cut
		bareURLs = append(bareURLs, url)
	}
	addr := serve.TCP(o.T, func(conn net.Conn) { o.judge.serve(conn) })
	o.start = func(who int) candidate {
		return startProcess(o.T, plan{Who: who, URL: urls[who], Judge: addr})
	}
	bareAddr := serve.TCP(o.T, func(conn net.Conn) { o.bareJudge.serve(conn) })
	o.startBare = func(who int) candidate {
		return startProcess(o.T, plan{Who: who, Bare: true, URL: bareURLs[who], Judge: bareAddr})
	}
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

// handOver makes the holder of the bare lock hand it on, if there is one.
func (o *office) handOver() {
	o.Helper()
	if o.bare == nil {
		return
	}
	now := o.bareJudge.await(o.T, 0)
	o.bareJudge.awaitAnother(o.T)
	o.bareJudge.ending(now, resigns)
	o.bare[now.who].resign()
	o.bareJudge.await(o.T, now.term)
}

// end ends the term of the leader, and returns the next one.
func (o *office) end(now reign, k kind) reign {
	o.Helper()
	if o.nodes == 0 && (k == stops || k == cuts || k == outages) {
		k = resigns // nothing of that can happen in memory
	}
	leader := o.all[now.who]
	o.judge.awaitAnother(o.T)
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
		o.all[now.who] = o.start(now.who)
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
		next := o.judge.await(o.T, now.term)
		o.judge.disturbed()
		o.bareJudge.disturbed()
		return next
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
			o.judge.awaitAnother(o.T)
			<-time.After(settling) // the process that has just begun takes the processor from the next leader
			o.judge.ending(now, restarts)
		}
		c.end()
		c.wait()
		o.judge.waits(who, false)
		o.all[who] = o.start(who)
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
