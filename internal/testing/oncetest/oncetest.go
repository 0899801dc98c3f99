//go:build unix

// Package oncetest tests package once with processes on real servers, for modules that know different stores.
//
// A package that uses it has a TestMain that calls Main first.
package oncetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/once"
)

const key = "report"

// Server is the server of a store, which keeps its data when it is killed.
type Server interface {
	Kill()
	Restart()
}

// job is what an instance does.
type job struct {
	url          string // of the store
	tick         time.Time
	window, skew time.Duration
}

// lasting is a job whose window does not end within a test.
func lasting(url string) job {
	return job{url, time.Now().Truncate(time.Millisecond), 5 * time.Minute, 10 * time.Second}
}

// start starts an instance that does the job, or waits to do it.
func (j job) start(t *testing.T) *instance.Process {
	t.Helper()
	return instance.Start(t, fmt.Sprintf("%s %d %d %d", j.url, j.tick.UnixMilli(), j.window, j.skew))
}

func (j job) per(ctx context.Context, l locker.Locker, f func(ctx context.Context) error) (once.Outcome, error) {
	return once.Do(ctx, l, key, j.tick, f, once.Window(j.window), once.Skew(j.skew))
}

// lock is the name of the lock of the tick.
func (j job) lock() string { return key + "@" + j.tick.UTC().Format("2006-01-02T15:04:05.999Z") }

// Main plays an instance, if the process is one.
func Main() { instance.Main(play) }

// play asks between the look at the clock and the request, and in the middle of the job.
func play(me *instance.Self, args []string) error {
	var j job
	var tick int64
	if _, err := fmt.Sscanf(args[0], "%s %d %d %d", &j.url, &tick, &j.window, &j.skew); err != nil {
		return err
	}
	j.tick = time.UnixMilli(tick)
	l, err := config.Open(context.Background(), j.url)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	outcome, err := j.per(context.Background(), &asking{l, me}, func(context.Context) error {
		me.Ask("runs")
		return nil
	})
	me.Say("outcome: %s, %v", outcome, err)
	return nil
}

// asking is a Locker that asks the test before its request.
type asking struct {
	locker.Locker
	me *instance.Self
}

func (a *asking) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	a.me.Ask("asks")
	lease, err := a.Locker.TryLock(ctx, key, opts...)
	if err == nil {
		a.me.Say("granted")
	}
	return lease, err
}

// opened is a Locker of this process.
func opened(t *testing.T, url string) *config.Opened {
	t.Helper()
	l, err := config.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func nothing(context.Context) error { return nil }

// unexpected is a job that must not run.
func unexpected(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("the tick is run a second time")
		return nil
	}
}

// Killed tests that the tick of an instance that is killed in the middle of the job stays claimed until its window and
// the skew are over.
func Killed(t *testing.T, url string) {
	j := lasting(url)
	p := j.start(t)
	p.Says("asks")
	p.GoOn()
	p.Says("runs")
	p.Kill()
	l := opened(t, url)
	store, ok := locker.As[inspect.Inspector](l)
	if !ok {
		t.Fatal("nobody can be asked when the lock ends")
	}
	now := time.Now() // before the question, so that the end is not seen later than it is
	seen, err := store.Inspect(t.Context(), j.lock())
	if err != nil {
		t.Fatal(err)
	}
	if end := now.Add(seen.Remaining); end.Before(j.tick.Add(j.window + j.skew)) {
		t.Errorf("the lock ends %v after the tick", end.Sub(j.tick))
	}
	if outcome, err := j.per(t.Context(), l, unexpected(t)); outcome != once.Elsewhere || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
}

// Stopped tests an instance that is stopped after it has looked at its clock, and until the tick is free again. It goes
// on, is granted the lock, and does not run the tick.
func Stopped(t *testing.T, url string) {
	for try := 1; ; try++ {
		j := job{url, time.Now().Truncate(time.Millisecond), 2 * time.Second, time.Second / 10}
		p := j.start(t)
		if line, _ := p.Line(); line != "asks" {
			if try < 10 && strings.HasPrefix(line, "outcome: too late") {
				continue // the process took too long to start
			}
			t.Fatalf("the instance said %q", line)
		}
		p.Signal(syscall.SIGSTOP)
		l, ran := opened(t, url), false
		outcome, err := j.per(t.Context(), l, func(context.Context) error { ran = true; return nil })
		if outcome == once.TooLate && try < 10 {
			p.Kill()
			continue // this process took too long
		}
		if outcome != once.Ran || !ran || err != nil {
			t.Fatalf("%s, %v", outcome, err)
		}
		free, err := l.Lock(t.Context(), j.lock()) // when the claim has ended
		if err != nil {
			t.Fatal(err)
		}
		if err := free.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.Signal(syscall.SIGCONT)
		p.GoOn()
		p.Says("granted") // otherwise this would show nothing
		if got := p.Says("outcome: "); !strings.HasPrefix(got, string(once.TooLate)) {
			t.Errorf("the instance that was stopped: %s", got)
		}
		p.Wait()
		return
	}
}

// Down tests that a tick that was run is not run again when the server has died and is back, and that one that was not
// is run.
func Down(t *testing.T, url string, s Server) {
	run := lasting(url)
	missed := run
	missed.tick = run.tick.Add(time.Millisecond)
	a, b := opened(t, url), opened(t, url)
	if outcome, err := run.per(t.Context(), a, nothing); outcome != once.Ran || err != nil {
		t.Fatalf("%s, %v", outcome, err)
	}
	s.Kill()
	for _, j := range []job{run, missed} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		outcome, err := j.per(ctx, b, unexpected(t))
		cancel()
		if outcome != once.Failed || !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("without a server: %s, %v", outcome, err)
		}
	}
	s.Restart()
	again := func(j job, f func(context.Context) error) once.Outcome {
		for {
			outcome, err := j.per(t.Context(), b, f)
			if outcome != once.Failed {
				return outcome
			}
			if !errors.Is(err, locker.ErrUnavailable) { // the client has not noticed yet that the server is back
				t.Fatal(err)
			}
		}
	}
	if outcome := again(run, unexpected(t)); outcome != once.Elsewhere {
		t.Errorf("the tick that was run: %s", outcome)
	}
	if outcome := again(missed, nothing); outcome != once.Ran {
		t.Errorf("the tick that was missed: %s", outcome)
	}
}
