package soak

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

// termsEnv is how many terms TestElections has on each store. Without it, there are few, on one store.
const termsEnv = "LOCKER_ELECTIONS"

const candidates = 5

// Ways in which terms end, beside kinds of faults.
const (
	resigns  = "resign"
	restarts = "rolling restart"
	outage   = "server restarted"
)

// endings is in the order of the report, with how often each comes.
var endings = []struct {
	name  string
	share int
}{{resigns, 13}, {restarts, 3}, {"SIGKILL", 1}, {"SIGSTOP", 1}, {"cut off", 1}, {outage, 1}}

// settling is how long a candidate needs at most, on a machine that is not busy, until the store can notify it, and
// healing how long after the server was restarted.
const settling, healing = 200 * time.Millisecond, time.Second

// Terms grow, and no two candidates lead at once, however leaders end: on each store, and with each driver.
func TestElections(t *testing.T) {
	g, began := newGoal(t, termsEnv, goal{}), time.Now()
	var mu sync.Mutex
	rows := map[string]string{}
	// They mostly wait.
	onStores(t, 4, g.all, func(tr *trial) {
		row := tr.elections(g.count)
		mu.Lock()
		defer mu.Unlock()
		rows[tr.of.Name] = row
	})
	var b strings.Builder
	b.WriteString("| | terms | looks | lock: hand-over | lock: rolling restart |")
	for _, e := range endings {
		fmt.Fprintf(&b, " %s |", e.name)
	}
	b.WriteString("\n| --- | --: | --: | --: | --: |" + strings.Repeat(" --: |", len(endings)) + "\n")
	for _, d := range append(slices.Clone(deployment.All), deployment.Guarded(ttl)) {
		b.WriteString(rows[d.Name])
	}
	t.Logf("`%s=%d go test -C internal/testing/trials/everystore -run TestElections ./soak`, %s, %s, %s, %s/%s, "+
		"%d processors, in %v.\n\n%s", termsEnv, g.count, began.Format("2 January 2006 15:04"),
		redistest.Version(redistest.Binary(t)), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(),
		time.Since(began).Round(time.Second), b.String())
}

// contest is five candidates for an election, or five processes that hand on a lock with Lock and Unlock alone. The
// second is beside the first, for comparison.
type contest struct {
	*trial
	key   string
	ended map[uint64]string // how terms were ended
}

// elections lets terms end in all ways until there were enough, and returns a row of the report. 0 terms are a few,
// without a comparison.
func (tr *trial) elections(terms int) (row string) {
	election := &contest{tr, office, map[uint64]string{}}
	bare := &contest{tr.beside(), turn, map[uint64]string{}}
	election.begin(candidates, plan{Work: ofTerms})
	ways := []string{resigns, restarts, resigns, "SIGKILL", resigns}
	if terms > 0 {
		bare.begin(candidates, plan{Work: ofTurns})
		ways = drawn(terms)
	}
	for _, how := range ways {
		switch {
		case how == outage:
			election.outage(bare)
		case terms > 0 && (how == resigns || how == restarts):
			election.endTerm(how)
			bare.endTerm(how)
		default:
			election.endTerm(how)
		}
	}
	for _, c := range []*contest{election, bare} {
		c.end()
		c.verdict()
	}
	relied := election.judge.count(func(s *span) bool { return s.last > 0 })
	if relied < 5 {
		tr.Errorf("only %d terms", relied)
	}
	looks := 0
	election.judge.count(func(s *span) bool { looks += s.times; return true })
	none := bare.gaps()
	row = fmt.Sprintf("| %s | %d | %d | %s | %s |", tr.of.Name, relied, looks, middle(none[resigns]),
		middle(none[restarts]))
	gaps := election.gaps()
	for _, e := range endings {
		row += " " + middle(gaps[e.name]) + " |"
	}
	return row + "\n"
}

// drawn returns how so many terms end.
func drawn(terms int) (all []string) {
	for len(all) < terms {
		for _, e := range endings {
			all = append(all, slices.Repeat([]string{e.name}, e.share)...)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:terms]
}

// leads waits until somebody leads in a term after the given one, and has worked.
func (c *contest) leads(after uint64) (now span) {
	c.Helper()
	c.judge.until(c.T, fmt.Sprintf("somebody leads after term %d", after), func() bool {
		if s := c.judge.newest[c.key]; s != nil {
			now = *s
		}
		return now.Fence > after && now.times >= 3
	})
	return now
}

// ready returns the leader, when another candidate has waited for some time for it to go. Candidates that have had
// short terms pause before they campaign again, and if all did, nobody would lead meanwhile. One that has just begun to
// wait has no subscription yet.
func (c *contest) ready() span {
	c.Helper()
	c.leads(0)
	var since time.Time
	c.judge.until(c.T, "another candidate waits", func() bool {
		for _, p := range c.all {
			if began, yes := c.judge.waiting[p.Who]; yes && (since.IsZero() || began.Before(since)) {
				since = began
			}
		}
		return !since.IsZero()
	})
	<-time.After(time.Until(since.Add(settling)))
	return c.leads(0)
}

// at returns which of the processes has a lease.
func (c *contest) at(s span) int {
	return slices.IndexFunc(c.all, func(p *process) bool { return p.Who == s.who })
}

// endTerm ends the term of the leader, and waits for the next one.
func (c *contest) endTerm(how string) {
	c.Helper()
	if how == restarts {
		c.replaceAll()
		return
	}
	now := c.ready()
	c.ended[now.Fence] = how
	next := func() { c.leads(now.Fence) }
	if how == resigns {
		c.all[c.at(now)].tell(resign)
	} else {
		c.hit(how, c.at(now), next)
	}
	next()
}

// replaceAll is a rolling restart: each candidate ends, the leader among them, and another process takes its place. The
// next one ends when that process takes part, as with a check for readiness. The process of a leader that has ended
// stays until the next one leads: in a real restart it exits on a machine of its own, and here it would take a
// processor from the next leader.
func (c *contest) replaceAll() {
	c.Helper()
	for i, p := range c.all {
		now := c.leads(0)
		if now.who == p.Who {
			<-time.After(settling)                 // the process that has just begun takes the processor from the next leader
			if now = c.ready(); now.who == p.Who { // otherwise this one has lost its lease meanwhile
				c.ended[now.Fence] = restarts
			}
		}
		p.tell(leave)
		if now.who == p.Who {
			c.leads(now.Fence)
		}
		c.replace(i, p.plan, false)
		who := c.all[i].Who
		c.judge.until(c.T, "the new process takes part", func() bool {
			s := c.judge.newest[c.key]
			return !c.judge.waiting[who].IsZero() || s != nil && s.who == who
		})
	}
}

// outage kills a server, and starts it again. The leader resigns if it has survived that.
func (c *contest) outage(bare *contest) {
	c.Helper()
	now := c.ready()
	c.ended[now.Fence] = outage
	c.hit(outage, 0, nil)
	c.all[c.at(now)].tell(resign)
	c.leads(now.Fence)
	c.judge.disturbed()
	bare.judge.disturbed()
}

// disturbed notes that a server was restarted, so that nobody can be notified for a while.
func (j *judge) disturbed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for who := range j.waiting {
		j.waiting[who] = time.Now().Add(healing - settling)
	}
}

// until waits until what holds, which is called with the mutex.
func (j *judge) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hangLimit); ; <-tick.C {
		j.mu.Lock()
		done := holds()
		j.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", hangLimit, what)
		}
	}
}

// gaps returns how long nobody led after the terms that were ended, by the ways in which they were.
func (c *contest) gaps() map[string][]time.Duration {
	c.judge.mu.Lock()
	defer c.judge.mu.Unlock()
	gaps := map[string][]time.Duration{}
	var before *span
	for _, s := range c.judge.byKey()[c.key] {
		if s.last == 0 {
			continue
		}
		if before != nil && c.ended[before.Fence] != "" {
			how := c.ended[before.Fence]
			gaps[how] = append(gaps[how], time.Duration(s.At-before.last))
		}
		before = s
	}
	return gaps
}

// middle returns the median and the 99th percentile, in milliseconds.
func middle(all []time.Duration) string {
	if len(all) == 0 {
		return "–"
	}
	slices.Sort(all)
	ms := func(q float64) float64 {
		return float64(all[min(len(all)-1, int(q*float64(len(all))))]) / float64(time.Millisecond)
	}
	return fmt.Sprintf("%.1f / %.1f", ms(.5), ms(.99))
}
