package elections

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
	"github.com/golocker/locker/internal/testing/trials/serve"
	"github.com/golocker/locker/memory"
)

// hangLimit decides between slow and hung.
const hangLimit = 60 * time.Second

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

// contest is one deployment with five candidates for an election, or with five processes that hand on a lock with Lock
// and Unlock alone. The second is beside the first, for comparison.
type contest struct {
	*testing.T
	judge  *judge
	all    []candidate
	start  func(who int) candidate
	relays [][]*testserver.Relay // by candidate and server
}

// testbed is one deployment with its contests.
type testbed struct {
	*testing.T
	deployment.Deployment
	store    *deployment.Store // nil: in memory
	election *contest
	bare     *contest
}

// play lets terms end in all ways until there were enough, and returns what the judges saw. 0 terms are a few, without
// a comparison.
func play(t *testing.T, d deployment.Deployment, terms int) (election, bare *judge) {
	o := &testbed{T: t, Deployment: d}
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
		if d.Start == nil && (k == stops || k == cuts || k == outages) {
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

// open starts the servers.
func (o *testbed) open() {
	inMemory := memory.NewBackend()
	if o.Start != nil {
		o.store = o.Start(o.T)
	}
	open := func(isBare bool) *contest {
		c := &contest{T: o.T, judge: newJudge()}
		if o.store == nil {
			c.start = func(who int) candidate {
				return startLocal(o.T, who, inMemory, c.judge, func(l locker.Locker, ask asker) runner {
					return newRunner(l, who, isBare, ask)
				})
			}
			return c
		}
		var urls []string
		for range candidates {
			url, relays := o.store.Connect(o.T)
			urls, c.relays = append(urls, url), append(c.relays, relays)
		}
		addr := serve.TCP(o.T, c.judge.serve)
		c.start = func(who int) candidate {
			return startProcess(o.T, plan{Who: who, Bare: isBare, URL: urls[who], Judge: addr})
		}
		return c
	}
	o.election, o.bare = open(false), open(true)
}

// restartServer kills a server, and starts it again.
func (o *testbed) restartServer() {
	o.Helper()
	now := o.election.await()
	o.election.judge.ending(now, outages)
	o.bare.judge.hit(outages)
	o.store.Servers[rand.IntN(len(o.store.Servers))].Restart()
	o.election.all[now.who].resign() // if it has survived that
	o.election.judge.await(o.T, now.term)
	o.election.judge.disturbed()
	o.bare.judge.disturbed()
}

// await returns the leader, when another candidate waits for it to go.
func (c *contest) await() (now leadership) {
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
// next one ends when that process takes part, as with a check for readiness. The process of a leader that has ended
// stays until the next one leads: in a real restart it exits on a machine of its own, and here it would take a
// processor from the next leader.
func (c *contest) replaceAll() {
	c.Helper()
	for who, one := range c.all {
		now := c.judge.await(c.T, 0)
		if now.who == who {
			<-time.After(settling)               // the process that has just begun takes the processor from the next leader
			if now = c.await(); now.who == who { // otherwise this one has lost its lease meanwhile
				c.judge.ending(now, restarts)
			}
		}
		one.end()
		if now.who == who {
			c.judge.await(c.T, now.term)
		}
		one.wait()
		c.judge.waits(who, false)
		c.all[who] = c.start(who)
		c.judge.awaitCampaign(c.T, who)
	}
}

// cutOff keeps the leader from the servers until another one leads.
func (c *contest) cutOff(now leadership) {
	for _, r := range c.relays[now.who] {
		defer r.Down()()
	}
	c.judge.await(c.T, now.term)
}
