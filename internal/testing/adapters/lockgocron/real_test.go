package lockgocron_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgocron"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/storeurl"
	"github.com/golocker/locker/once"
)

func TestMain(m *testing.M) {
	instance.Main(play)
	redistest.Main(m)
}

// What an instance does with a job that is due each second.
const (
	runs  = "runs"  // it runs the ticks that it can claim
	hangs = "hangs" // it claims a tick, and hangs in the job
	leads = "leads" // it runs all ticks while it leads
)

// play is an instance. It says which ticks it was granted or refused, and when its job runs.
func play(me *instance.Self, args []string) error {
	mode, ctx := args[0], context.Background()
	l, err := config.Open(ctx, args[1])
	if err != nil {
		return err
	}
	ticks := lockgocron.New(&telling{l, me})
	opt := gocron.WithDistributedLocker(ticks)
	if mode == leads {
		e := election.New(l, "scheduler", election.Config{
			OnElected: func(ctx context.Context, _ election.Term) error {
				<-ctx.Done()
				return nil
			},
			Options: []locker.Option{locker.TTL(2 * time.Second)},
		})
		go func() { me.Say("the election ends: %v", e.Run(ctx)) }()
		opt = gocron.WithDistributedElector(lockgocron.ByElection(e))
	}
	s, err := gocron.NewScheduler(opt)
	if err != nil {
		return err
	}
	ticks.Attach(s)
	job := func() {
		me.Say("runs")
		if mode == hangs {
			select {}
		}
	}
	_, err = s.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(job), gocron.WithName("report"),
		gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err != nil {
		return err
	}
	s.Start()
	me.Ask("started") // until it is killed
	return nil
}

// telling is a Locker that says what became of each claim.
type telling struct {
	locker.Locker
	me *instance.Self
}

func (l *telling) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := l.Locker.TryLock(ctx, key, opts...)
	switch {
	case err == nil:
		l.me.Say("granted %s", key)
	case errors.Is(err, locker.ErrUnavailable):
		l.me.Say("unavailable %s", key)
	case errors.Is(err, locker.ErrHeld):
		l.me.Say("refused %s", key)
	default:
		l.me.Say("unexpected: %v", err)
	}
	return lease, err
}

func TestProcesses(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (url string, s storeurl.Server){
		"Redis": func(t *testing.T) (string, storeurl.Server) {
			s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			return "redis://" + s.Addr(), s
		},
		"PostgreSQL": func(t *testing.T) (string, storeurl.Server) {
			s := pgtest.Start(t, "fsync=on")
			url := s.URL("postgres")
			adapters.Migrate(t, url)
			return url, s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, s := start(t)
			t.Run("killed in the job", func(t *testing.T) { killed(t, url) })
			t.Run("the leader is killed", func(t *testing.T) { leaderKilled(t, url) })
			t.Run("the server is down", func(t *testing.T) { down(t, url, s) })
		})
	}
}

// killed tests that the tick of an instance that is killed in the job is not claimed again.
func killed(t *testing.T, url string) {
	p := instance.Start(t, hangs, url)
	key := p.Says("granted ")
	p.Says("runs")
	p.Kill()
	tick, err := time.Parse(time.RFC3339, strings.TrimPrefix(key, "report@"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := config.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := once.Claim(t.Context(), l, "report", tick); !errors.Is(err, once.ErrElsewhere) {
		t.Errorf("%v; want %v", err, once.ErrElsewhere)
	}
}

// leaderKilled tests that another instance leads and runs the jobs when the leader is killed.
func leaderKilled(t *testing.T, url string) {
	a := instance.Start(t, leads, url)
	a.Says("runs")
	b := instance.Start(t, leads, url)
	b.Says("started")
	a.Says("runs")
	a.Kill()
	b.Says("runs")
}

// down tests that two instances agree on the ticks, and that one of them is granted each, before the server dies and
// when it is back. A tick that could not be claimed meanwhile is claimed then.
func down(t *testing.T, url string, s storeurl.Server) {
	lines := watch(t, instance.Start(t, runs, url), instance.Start(t, runs, url))
	claims := map[string]map[string]string{} // what each instance said of each tick, by tick and instance
	next := func() (what, key string) {
		line, ok := <-lines
		if !ok {
			t.Fatal("the instances have ended")
		}
		who, line, _ := strings.Cut(line, " ")
		what, key, _ = strings.Cut(line, " ")
		switch {
		case what == "unexpected:":
			t.Fatal(key)
		case what != "granted" && what != "refused":
			return what, key
		case claims[key] == nil:
			claims[key] = map[string]string{}
		}
		claims[key][who] = what // the last time, if it has asked again
		return what, key
	}
	agree := func(n int) {
		t.Helper()
		for n > 0 {
			_, key := next()
			if len(claims[key]) < 2 {
				continue
			}
			if n--; claims[key]["0"] == claims[key]["1"] {
				t.Errorf("both instances were %s %s", claims[key]["0"], key)
			}
		}
	}
	agree(4)
	s.Kill()
	what, missed := "", ""
	for what != "unavailable" || claims[missed] != nil {
		what, missed = next()
	}
	s.Restart()
	for claims[missed] == nil { // nobody could claim it when it was due
		next()
	}
	agree(2)
}

// watch returns what instances say, with their numbers.
func watch(t *testing.T, all ...*instance.Process) <-chan string {
	lines := make(chan string)
	var watchers sync.WaitGroup
	for n, p := range all {
		watchers.Go(func() {
			for {
				line, ok := p.Line()
				if !ok {
					return
				}
				select {
				case lines <- fmt.Sprint(n, " ", line):
				case <-t.Context().Done():
					return
				}
			}
		})
	}
	go func() {
		watchers.Wait()
		close(lines)
	}()
	return lines
}
