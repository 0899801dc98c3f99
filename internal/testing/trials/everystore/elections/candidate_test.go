package elections

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

// planEnv is a variable that makes the test binary a candidate in a process of its own.
const planEnv = "ELECTIONS_TEST_PLAN"

// ttl is the TTL of all locks here. It is as long as a turn on a Redlock lasts, which ends no earlier than that if its
// owner dies.
const ttl = 2 * time.Second

// visiting is the time between two visits of a leader to the judge. The holder of a bare lock may wait for longer,
// because it is only measured how soon the next one comes after its last visit.
const visiting, visitingBare = time.Millisecond, 10 * time.Millisecond

// plan says what a candidate needs to know.
type plan struct {
	Who   int
	Bare  bool // it hands a lock on, without an election
	URL   string
	Judge string
}

// candidate is one of five, in this process or in another one.
type candidate interface {
	resign()
	end()           // as SIGTERM does: the context of Run ends, and then the Client is closed
	kill()          // without a release
	stop(stop bool) // SIGSTOP and SIGCONT; only processes can be stopped
	wait()          // until it has ended; a process may exit from then on
}

// asker tells the judge what a candidate does, and returns whether the judge admits it.
type asker func(what string, term uint64) (admitted bool)

// work is a leader's: it visits the judge again and again until ctx ends, and a last time before it hands on.
func work(ctx context.Context, who int, term election.Term, between time.Duration, ask asker) error {
	pause := time.NewTicker(between)
	defer pause.Stop()
	for isOver := false; !isOver; {
		until := term.Lease.Until()
		if isOver = ctx.Err() != nil; isOver && (term.Lease.Err() != nil || !time.Now().Before(until)) {
			return nil
		}
		if !ask(visits, term.Number) {
			what := isLate
			if time.Now().Before(until) {
				what = isValid
			} else if !endsSoon(ctx) {
				what = goesOn
			}
			ask(what, term.Number)
			return fmt.Errorf("candidate %d was refused", who)
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// endsSoon waits until ctx ends, for two seconds in which this process runs: the ticks that it sleeps through are lost.
func endsSoon(ctx context.Context) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return true
		}
	}
	return ctx.Err() != nil
}

// runner is an election, or a bare lock.
type runner interface {
	Run(ctx context.Context) error
	Resign(ctx context.Context) error
}

func newRunner(l locker.Locker, who int, isBare bool, ask asker) runner {
	if isBare {
		return &bare{l, who, ask, make(chan struct{}, 1)}
	}
	return election.New(l, "office", election.Config{
		Identity: fmt.Sprint("candidate-", who),
		Options:  []locker.Option{locker.TTL(ttl)},
		OnError:  func(error) {},
		OnElected: func(ctx context.Context, term election.Term) error {
			return work(ctx, who, term, visiting, ask)
		},
	})
}

// campaignHere is the main function of the other process. It executes the lines of stdin.
func campaignHere() {
	var p plan
	fail := func(err error) {
		if err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Getenv(planEnv)), &p))
	conn, err := net.Dial("tcp", p.Judge)
	fail(err)
	var mu sync.Mutex
	in := bufio.NewReader(conn)
	ask := func(what string, term uint64) (admitted bool) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintln(conn, what, p.Who, term)
		if _, err := fmt.Fscanln(in, &admitted); err != nil {
			os.Exit(0) // the trial is over
		}
		return admitted
	}
	ctx, cancel := context.WithCancel(context.Background())
	l, err := config.Open(ctx, p.URL)
	fail(err)
	e := newRunner(l, p.Who, p.Bare, ask)
	leave := make(chan struct{})
	go func() {
		for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
			switch orders.Text() {
			case "resign":
				go func() { _ = e.Resign(ctx) }()
			case "end":
				cancel()
			case "leave":
				close(leave)
			}
		}
		os.Exit(0)
	}()
	fail(e.Run(onWaiting(ctx, func() { ask(waiting, 0) })))
	_ = l.Close()
	<-leave
}

// onWaiting calls f when a call of Lock with the context begins to wait.
func onWaiting(ctx context.Context, f func()) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { f() }})
}

// process is a candidate in another process.
type process struct {
	cmd    *exec.Cmd
	orders interface{ Write([]byte) (int, error) }
	gone   chan struct{}
}

func startProcess(t *testing.T, p plan) *process {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	c := &process{cmd: exec.Command(os.Args[0]), gone: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), planEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.orders, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	leash, err := child.NewLeash(c.cmd.Process.Pid, "")
	go func() {
		defer close(c.gone)
		_ = c.cmd.Wait()
		if err == nil {
			leash.Off()
		}
	}()
	t.Cleanup(func() {
		c.kill()
		c.wait()
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *process) resign() { _, _ = fmt.Fprintln(c.orders, "resign") }
func (c *process) end()    { _, _ = fmt.Fprintln(c.orders, "end") }
func (c *process) kill()   { _ = c.cmd.Process.Kill() }

func (c *process) wait() {
	_, _ = fmt.Fprintln(c.orders, "leave")
	<-c.gone
}

func (c *process) stop(stop bool) {
	sig := syscall.SIGCONT
	if stop {
		sig = syscall.SIGSTOP
	}
	_ = c.cmd.Process.Signal(sig)
}

// local is a candidate in this process, with a Client of its own. It is for stores in memory.
type local struct {
	runner
	store  *mortal
	client *locker.Client
	cancel context.CancelFunc
	run    sync.WaitGroup
}

// mortal is a store whose client can die: nothing that it sends arrives then.
type mortal struct {
	*memory.Backend
	dead atomic.Bool
}

func (m *mortal) Extend(ctx context.Context, req backend.Request) error {
	if m.dead.Load() {
		return locker.ErrUnavailable
	}
	return m.Backend.Extend(ctx, req)
}

func (m *mortal) Release(ctx context.Context, req backend.Request) error {
	if m.dead.Load() {
		return locker.ErrUnavailable
	}
	return m.Backend.Release(ctx, req)
}

func startLocal(t *testing.T, who int, backend *memory.Backend, j *judge,
	newRunner func(locker.Locker, asker) runner) *local {
	c := &local{store: &mortal{Backend: backend}}
	c.client = locker.NewClient(c.store)
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.runner = newRunner(c.client, func(what string, term uint64) bool { return j.hear(what, who, term) })
	c.run.Go(func() {
		_ = c.Run(onWaiting(ctx, func() { j.waits(who, true) })) // ErrClosed after kill
		_ = c.client.Close()
	})
	t.Cleanup(func() {
		c.end()
		c.wait()
	})
	return c
}

func (c *local) resign()   { c.run.Go(func() { _ = c.Resign(context.Background()) }) }
func (c *local) end()      { c.cancel() }
func (c *local) stop(bool) {}
func (c *local) wait()     { c.run.Wait() }

func (c *local) kill() {
	c.store.dead.Store(true)
	_ = c.client.Close()
}
