package soak

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	_ "github.com/golocker/locker/backends/etcd"
	_ "github.com/golocker/locker/backends/nats"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	_ "github.com/golocker/locker/drivers/valkey"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
)

// The test binary is also the program of the workers.
func TestMain(m *testing.M) {
	if os.Getenv(planEnv) != "" {
		workHere()
		return
	}
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

const (
	// forEnv is how long each store is tried, such as 10m. Without it, one store is, for seconds.
	forEnv = "LOCKER_SOAK"
	// onlyEnv selects stores by a part of their names.
	onlyEnv = "LOCKER_SOAK_ONLY"

	workers = 5
	// slack is what a call may take longer than its limit: its process is stopped for a while, and the machine is busy.
	slack = 20 * time.Second
)

// Whatever happens to processes, servers and networks, no two hold a lock at once, tokens grow, certificates are true,
// each call returns, and nothing is left behind.
func TestSoak(t *testing.T) {
	duration, all := 4*time.Second, os.Getenv(forEnv)
	if all != "" {
		var err error
		if duration, err = time.ParseDuration(all); err != nil {
			t.Fatal(err)
		}
	}
	guarded := deployment.Guarded(ttl)
	for _, d := range append(slices.Clone(deployment.All), guarded) {
		switch {
		case d.Start == nil, !strings.Contains(d.Name, os.Getenv(onlyEnv)):
			continue // the memory is not for several processes
		case all == "" && d.Name != "single, goredis":
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			(&trial{T: t, judge: newJudge(), store: d.Start(t), forgets: d.Name == guarded.Name}).run(duration)
		})
	}
}

// trial is one store with its processes.
type trial struct {
	*testing.T
	judge   *judge
	store   *deployment.Store
	forgets bool // servers may forget
	all     [workers]*process
	number  int // of processes so far
}

// process is a worker and its ways to the servers.
type process struct {
	who    int
	cmd    *exec.Cmd
	stdin  io.Closer
	relays []*testserver.Relay
	heard  sync.WaitGroup
	killed atomic.Bool
}

func (tr *trial) run(duration time.Duration) {
	for i := range tr.all {
		url, relays := tr.store.Connect(tr.T)
		tr.all[i] = tr.start(url, relays)
	}
	faults := 0
	for end := time.Now().Add(duration); time.Now().Before(end); faults++ {
		<-time.After(200*time.Millisecond + rand.N(2*time.Second))
		tr.fault()
		tr.judge.overdue(limit + slack)
	}
	for _, p := range tr.all {
		_ = p.stdin.Close()
		over := time.AfterFunc(limit+slack, func() {
			tr.Errorf("process %d has not ended", p.who)
			p.kill()
		})
		p.heard.Wait()
		over.Stop()
	}
	tr.nothingLeft()
	for _, wrong := range tr.judge.verdict() {
		tr.Error(wrong)
	}
	relied, certificates := 0, 0
	for _, s := range tr.judge.spans {
		if s.last > 0 {
			relied++
		}
		if s.certificate > 0 {
			certificates++
		}
	}
	handed := tr.judge.handed()
	tr.Logf("%d acquisitions, %d of them within a process, %d relied on, %d certificates, %d faults, %d processes in %v",
		len(tr.judge.spans), handed, relied, certificates, faults, tr.number, duration)
	if handed*50 < relied {
		tr.Errorf("only %d of %d locks were handed over within a process", handed, relied)
	}
	if relied < 10 {
		tr.Errorf("only %d locks were relied on", relied)
	}
}

// fault breaks something, and mends it.
func (tr *trial) fault() {
	i := rand.IntN(workers)
	p, server := tr.all[i], tr.store.Servers[rand.IntN(len(tr.store.Servers))]
	d := 100*time.Millisecond + rand.N(2*ttl)
	kinds := 7
	if tr.forgets {
		kinds++
	}
	switch rand.IntN(kinds) {
	case 0:
		p.kill()
		p.heard.Wait()
		tr.judge.dies(p.who)
		tr.all[i] = tr.start(tr.url(p), p.relays)
	case 1:
		_ = p.cmd.Process.Signal(syscall.SIGSTOP)
		<-time.After(d)
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
	case 2:
		server.Restart()
	case 3:
		server.Pause()
		<-time.After(d)
		server.Resume()
	case 4:
		for _, r := range p.relays {
			r.Cut()
		}
	case 5:
		resume := p.relays[rand.IntN(len(p.relays))].Hang()
		<-time.After(d)
		resume()
	case 6:
		for _, r := range p.relays {
			defer r.Down()()
		}
		<-time.After(d)
	case 7:
		server.Forget()
	}
}

// url returns the URL with which p was started.
func (tr *trial) url(p *process) string {
	for _, v := range p.cmd.Env {
		if text, ok := strings.CutPrefix(v, planEnv+"="); ok {
			var was plan
			if err := json.Unmarshal([]byte(text), &was); err != nil {
				tr.Fatal(err)
			}
			return was.URL
		}
	}
	return ""
}

func (tr *trial) start(url string, relays []*testserver.Relay) *process {
	tr.Helper()
	tr.number++
	p := &process{who: tr.number, cmd: exec.Command(os.Args[0]), relays: relays}
	text, err := json.Marshal(plan{p.who, url})
	if err != nil {
		tr.Fatal(err)
	}
	p.cmd.Env = append(os.Environ(), planEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = os.Stderr
	stdin, err1 := p.cmd.StdinPipe()
	stdout, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		tr.Fatal(err)
	}
	p.stdin = stdin
	leash, err := child.NewLeash(p.cmd.Process.Pid, "")
	p.heard.Go(func() {
		for in := json.NewDecoder(stdout); ; {
			var w word
			if in.Decode(&w) != nil { // the end, or the last line of a process that was killed
				break
			}
			tr.judge.hear(p.who, w)
		}
		if end := p.cmd.Wait(); end != nil && !p.killed.Load() {
			tr.Errorf("process %d: %v", p.who, end)
		}
		if err == nil {
			leash.Off()
		}
	})
	tr.Cleanup(func() {
		p.kill()
		p.heard.Wait()
	})
	if err != nil {
		tr.Fatal(err)
	}
	return p
}

func (p *process) kill() {
	p.killed.Store(true)
	_ = p.cmd.Process.Kill()
}

// nothingLeft locks each key, after all processes have ended.
func (tr *trial) nothingLeft() {
	url, _ := tr.store.Connect(tr.T)
	l, err := config.Open(tr.Context(), url)
	if err != nil {
		tr.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(tr.Context(), ttl+limit)
	defer cancel()
	all, err := locker.LockAll(ctx, l, keys, locker.TTL(ttl))
	if err != nil {
		tr.Errorf("a lock was left behind: %v", err)
		return
	}
	if err := all.Unlock(ctx); err != nil {
		tr.Error(err)
	}
}
