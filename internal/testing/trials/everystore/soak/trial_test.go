package soak

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

const (
	// slack is what a call may take longer than its limit: its process is stopped for a while, and the machine is busy.
	slack = 20 * time.Second
	// hangLimit is for what must go on although servers and networks fail from time to time.
	hangLimit = 3 * time.Minute
)

// trial is one store with its processes.
type trial struct {
	*testing.T
	of deployment.Deployment

	judge   *judge
	audit   string // the directory of the audit logs
	store   *deployment.Store
	forgets bool // servers may forget
	all     []*process
	number  int            // of processes so far
	others  map[int]bool   // the processes with another program than this one
	faults  map[string]int // how often each was
	outages []stretch      // the times of faults
}

func newTrial(t *testing.T, d deployment.Deployment) *trial {
	return (&trial{T: t, of: d, store: d.Start(t)}).beside()
}

// beside returns a trial of other processes on the same servers.
func (tr *trial) beside() *trial {
	return &trial{
		T: tr.T, of: tr.of, store: tr.store, judge: newJudge(), audit: tr.TempDir(), others: map[int]bool{},
		faults: map[string]int{},
	}
}

// process is a worker and its ways to the servers.
type process struct {
	plan
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	relays []*testserver.Relay
	heard  sync.WaitGroup
	killed atomic.Bool
}

// begin starts n processes with one plan.
func (tr *trial) begin(n int, p plan) {
	for range n {
		var relays []*testserver.Relay
		p.URL, relays = tr.store.Connect(tr.T)
		tr.all = append(tr.all, tr.start(p, relays))
	}
}

// goal is when a store was tried for long enough: after some time, or after so many acquisitions. With cycles, it has
// to see a two-hundredth as many cycles of Upgrade and Downgrade, and some at least.
type goal struct {
	time   time.Duration
	count  int
	cycles bool
	all    bool // stores
}

// newGoal returns the goal that a variable has, for all stores. Without it, the goal is a brief one.
func newGoal(t *testing.T, env string, brief goal) goal {
	t.Helper()
	text := os.Getenv(env)
	if text == "" {
		return brief
	}
	n, err := strconv.Atoi(text)
	g := goal{count: n, cycles: brief.cycles, all: true}
	if err != nil {
		if g.time, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// until returns a function that reports whether the goal is reached. It fails the test if nobody acquires anything any
// more, or only now and then.
func (tr *trial) until(g goal) func() bool {
	began, before, changed := time.Now(), 0, time.Now()
	return func() bool {
		acquired := tr.judge.count(func(s *span) bool { return !s.changed() && s.last > 0 })
		cycles := tr.judge.cycles()
		enough := acquired >= 100 && (!g.cycles || cycles >= 3)
		switch {
		case !enough && time.Since(began) > hangLimit:
			tr.Fatalf("only %d acquisitions, %d upgrades with a downgrade in %v", acquired, cycles, hangLimit)
		case acquired > before:
			before, changed = acquired, time.Now()
		case time.Since(changed) > hangLimit:
			tr.Fatalf("nobody has acquired anything for %v", hangLimit)
		}
		return enough && time.Since(began) >= g.time && acquired >= g.count && (!g.cycles || cycles >= g.count/200)
	}
}

// disturb breaks something, and mends it, again and again, until it is over, or a call has not returned.
func (tr *trial) disturb(over func() bool) {
	for !over() && !tr.judge.found() {
		<-time.After(200*time.Millisecond + rand.N(2*time.Second))
		tr.fault()
		tr.judge.overdue(limit + slack)
	}
}

// kinds are the faults, by name. Each hits the i-th process, or its ways to the servers, or a server. What lasts lasts
// for as long as the call of meanwhile.
var kinds = []struct {
	name string
	// possible: nil if it always is.
	possible func(tr *trial) bool
	hit      func(tr *trial, i int, meanwhile func())
}{
	{"SIGKILL", nil, func(tr *trial, i int, _ func()) { tr.replace(i, tr.all[i].plan, true) }},
	{"SIGSTOP", nil, func(tr *trial, i int, meanwhile func()) {
		_ = tr.all[i].cmd.Process.Signal(syscall.SIGSTOP)
		defer func() { _ = tr.all[i].cmd.Process.Signal(syscall.SIGCONT) }()
		meanwhile()
	}},
	{"commands", func(tr *trial) bool { return tr.all[0].Work == ofLocksAndPlaces },
		func(tr *trial, i int, _ func()) { tr.commands(tr.all[i]) }},
	{"server restarted", (*trial).hasServers, func(tr *trial, _ int, _ func()) { tr.server().Restart() }},
	{"server stopped", (*trial).hasServers, func(tr *trial, _ int, meanwhile func()) {
		server := tr.server()
		server.Pause()
		defer server.Resume()
		meanwhile()
	}},
	{"connections cut", (*trial).hasServers, func(tr *trial, i int, _ func()) {
		for _, r := range tr.all[i].relays {
			r.Cut()
		}
	}},
	{"connections hang", (*trial).hasServers, func(tr *trial, i int, meanwhile func()) {
		ways := tr.all[i].relays
		defer ways[rand.IntN(len(ways))].Hang()()
		meanwhile()
	}},
	{"cut off", (*trial).hasServers, func(tr *trial, i int, meanwhile func()) {
		for _, r := range tr.all[i].relays {
			defer r.Down()()
		}
		meanwhile()
	}},
	{"server forgets", func(tr *trial) bool { return tr.forgets }, func(tr *trial, _ int, _ func()) {
		tr.server().Forget()
	}},
}

func (tr *trial) hasServers() bool { return len(tr.store.Servers) > 0 }

func (tr *trial) server() deployment.Server {
	return tr.store.Servers[rand.IntN(len(tr.store.Servers))]
}

// fault breaks something, and mends it.
func (tr *trial) fault() {
	d := 100*time.Millisecond + rand.N(2*ttl)
	for {
		k := kinds[rand.IntN(len(kinds))]
		if k.possible != nil && !k.possible(tr) {
			continue
		}
		began := now()
		tr.hit(k.name, rand.IntN(len(tr.all)), func() { <-time.After(d) })
		tr.outages = append(tr.outages, stretch{began, now()})
		return
	}
}

// hit lets a kind of fault hit the i-th process.
func (tr *trial) hit(kind string, i int, meanwhile func()) {
	tr.faults[kind]++
	for _, k := range kinds {
		if k.name == kind {
			k.hit(tr, i, meanwhile)
		}
	}
}

// leaderStops lets the leader stand still until it takes locks for over that its successor knows better about. It
// stumbles when it goes on, as a machine does that wakes. Half of the processes hear nothing at that time, so that
// their holders have to know by themselves how long they have their locks.
func (tr *trial) leaderStops(d time.Duration) {
	leader := tr.store.Leader()
	leader.Pause()
	<-time.After(d)
	for i, p := range tr.all {
		if i%2 > 0 {
			continue
		}
		for _, r := range p.relays {
			defer r.Hang()()
		}
	}
	<-time.After(50 * time.Millisecond)
	for range 20 {
		leader.Resume()
		<-time.After(2 * time.Millisecond)
		leader.Pause()
		<-time.After(5 * time.Millisecond)
	}
	leader.Resume()
	<-time.After(holdTTL)
}

// replace ends or kills the i-th process, and starts another one with a plan in its place.
func (tr *trial) replace(i int, p plan, kill bool) {
	tr.Helper()
	old := tr.all[i]
	if kill {
		old.kill()
		old.heard.Wait()
		tr.judge.dies(old.Who)
	} else {
		tr.stop(old)
	}
	p.URL = old.URL
	tr.all[i] = tr.start(p, old.relays)
}

// commands starts processes that look once, as those of cron, where a process is. Some of them are killed.
func (tr *trial) commands(at *process) {
	tr.Helper()
	p := at.plan
	p.Once = true
	for range 5 {
		one := tr.start(p, nil)
		if rand.IntN(2) == 0 {
			<-time.After(rand.N(200 * time.Millisecond))
			one.kill()
		}
		tr.stop(one)
		if one.killed.Load() {
			tr.judge.dies(one.Who)
		}
	}
}

// stop ends a process as a program ends that is told to.
func (tr *trial) stop(p *process) {
	_ = p.stdin.Close()
	over := time.AfterFunc(limit+slack, func() {
		tr.Errorf("process %d has not ended, and prints where it hangs", p.Who)
		p.killed.Store(true)
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		<-time.After(5 * time.Second)
		p.kill()
	})
	p.heard.Wait()
	over.Stop()
}

// tell has a process execute a line.
func (p *process) tell(line string) { _, _ = io.WriteString(p.stdin, line+"\n") }

// end stops all processes.
func (tr *trial) end() {
	for _, p := range tr.all {
		tr.stop(p)
	}
}

// verdict fails the test if the judge has found something.
func (tr *trial) verdict() {
	tr.Helper()
	const shown = 20
	wrong := tr.judge.verdict()
	for i, wrong := range wrong {
		if i < shown {
			tr.Error(wrong)
		}
	}
	if len(wrong) > shown {
		tr.Errorf("and %d more", len(wrong)-shown)
	}
	found := tr.judgeLogs()
	for _, f := range found[:min(shown, len(found))] {
		tr.Errorf("audit logs: %v, and %d more of this kind, of this key", f, f.More)
		for _, e := range f.Entries {
			tr.Logf("%+v", e)
		}
	}
}

func (tr *trial) start(p plan, relays []*testserver.Relay) *process {
	tr.Helper()
	tr.number++
	p.Who, p.Audit = tr.number, tr.audit
	tr.others[p.Who] = p.program != ""
	one := &process{plan: p, cmd: exec.Command(cmp.Or(p.program, os.Args[0])), relays: relays}
	text, err := json.Marshal(p)
	if err != nil {
		tr.Fatal(err)
	}
	one.cmd.Env = append(os.Environ(), planEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	if p.Who%2 > 0 { // it costs less, and the processes run at the same time anyway
		one.cmd.Env = append(one.cmd.Env, "GOMAXPROCS=1")
	}
	one.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	one.cmd.Stderr = os.Stderr
	stdin, err1 := one.cmd.StdinPipe()
	stdout, err2 := one.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, one.cmd.Start()); err != nil {
		tr.Fatal(err)
	}
	one.stdin = stdin
	leash, err := child.NewLeash(one.cmd.Process.Pid, "")
	one.heard.Go(func() {
		for in := json.NewDecoder(stdout); ; {
			var w word
			if in.Decode(&w) != nil { // the end, or the last line of a process that was killed
				break
			}
			tr.judge.hear(one.Who, w)
		}
		if end := one.cmd.Wait(); end != nil && !one.killed.Load() {
			tr.Errorf("process %d: %v", one.Who, end)
		}
		if err == nil {
			leash.Off()
		}
	})
	tr.Cleanup(func() {
		one.kill()
		one.heard.Wait()
	})
	if err != nil {
		tr.Fatal(err)
	}
	return one
}

func (p *process) kill() {
	p.killed.Store(true)
	_ = p.cmd.Process.Kill()
}

// open returns a Client of this process, whose requests meet no mishaps.
func (tr *trial) open() *config.Opened {
	tr.Helper()
	quiet := *tr.store
	quiet.Mishaps = nil
	url, _ := quiet.Connect(tr.T)
	l, err := config.Open(tr.Context(), url, locker.TTL(ttl))
	if err != nil {
		tr.Fatal(err)
	}
	return l
}
