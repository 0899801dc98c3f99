package once_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/once"
)

// instanceEnv makes the test binary play an instance: a process that calls Per once, as the variable says.
const instanceEnv = "ONCE_TEST_INSTANCE"

// job is what an instance does, and what instanceEnv contains: the URL of the store, the tick, the window and the skew.
type job struct {
	url          string
	tick         time.Time
	window, skew time.Duration
}

func (j job) String() string {
	return fmt.Sprintf("%s %d %d %d", j.url, j.tick.UnixMilli(), j.window, j.skew)
}

func (j job) per(ctx context.Context, l locker.Locker, f func(ctx context.Context) error) (once.Outcome, error) {
	return once.Per(ctx, l, key, j.tick, f, once.Window(j.window), once.Skew(j.skew))
}

// playInstance prints "asks" between the look at the clock and the request, and goes on when it reads a line. It prints
// "granted" when it has the lock, and "runs" in the middle of the job, which ends at the next line. The outcome comes
// at the end.
func playInstance() {
	var j job
	var tick int64
	if _, err := fmt.Sscanf(os.Getenv(instanceEnv), "%s %d %d %d", &j.url, &tick, &j.window, &j.skew); err != nil {
		panic(err)
	}
	j.tick = time.UnixMilli(tick)
	l, err := config.Open(context.Background(), j.url)
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	say := func(word string) {
		fmt.Println(word)
		_, _ = in.ReadString('\n')
	}
	outcome, err := j.per(context.Background(), &asking{l, func() { say("asks") }}, func(context.Context) error {
		say("runs")
		return nil
	})
	fmt.Printf("outcome: %s, %v\n", outcome, err)
}

// asking is a Locker that calls before in front of its request.
type asking struct {
	locker.Locker
	before func()
}

func (a *asking) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	a.before()
	lease, err := a.Locker.TryLock(ctx, key, opts...)
	if err == nil {
		fmt.Println("granted")
	}
	return lease, err
}

// process is an instance in a process of its own.
type process struct {
	*testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	lines *bufio.Scanner
}

func start(t *testing.T, j job) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // also if it is stopped
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), instanceEnv+"="+j.String(), "GORACE=atexit_sleep_ms=0")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &process{t, cmd, in, bufio.NewScanner(out)}
}

// says waits for a line that begins with text, and returns the rest of it.
func (p *process) says(text string) string {
	p.Helper()
	for p.lines.Scan() {
		if rest, ok := strings.CutPrefix(p.lines.Text(), text); ok {
			return rest
		}
	}
	p.Fatalf("the instance has not said %q", text)
	return ""
}

func (p *process) goOn() { _, _ = io.WriteString(p.stdin, "\n") }

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// opened is a Locker of this process.
func opened(t *testing.T, url string) locker.Locker {
	t.Helper()
	l, err := config.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// unexpected is a job that must not run.
func unexpected(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("the tick is run a second time")
		return nil
	}
}

// lockOf is the key of the tick on a server.
func lockOf(tick time.Time) string {
	return "lock:" + key + "@" + tick.UTC().Format("2006-01-02T15:04:05.999Z")
}

// An instance is killed in the middle of the job. The tick stays claimed until its window and the skew are over.
func TestInstanceIsKilled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	j := job{"redis+goredis://" + s.Addr(), time.Now().Truncate(time.Millisecond), 5 * time.Minute, 10 * time.Second}
	p := start(t, j)
	p.says("asks")
	p.goOn()
	p.says("runs")
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
	now := time.Now() // before the question, so that the end is not seen later than it is
	if end := now.Add(s.PTTL(t, lockOf(j.tick))); end.Before(j.tick.Add(j.window + j.skew)) {
		t.Errorf("the lock ends %v after the tick", end.Sub(j.tick))
	}
	if outcome, err := j.per(t.Context(), opened(t, j.url), unexpected(t)); outcome != once.Elsewhere || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
}

// An instance is stopped after it has looked at its clock, and until the tick is free again. It goes on, is granted the
// lock, and does not run the tick.
func TestInstanceIsStopped(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for try := 1; ; try++ {
		j := job{"redis+redigo://" + s.Addr(), time.Now().Truncate(time.Millisecond), 2 * time.Second, time.Second / 10}
		p := start(t, j)
		if !p.lines.Scan() || p.lines.Text() != "asks" {
			if _ = p.cmd.Wait(); try < 10 && strings.HasPrefix(p.lines.Text(), "outcome: too late") {
				continue // the process took too long to start
			}
			t.Fatalf("the instance said %q", p.lines.Text())
		}
		p.signal(syscall.SIGSTOP)
		l, ran := opened(t, j.url), false
		outcome, err := j.per(t.Context(), l, func(context.Context) error { ran = true; return nil })
		if outcome == once.TooLate && try < 10 {
			p.signal(syscall.SIGKILL)
			_ = p.cmd.Wait()
			continue // this process took too long
		}
		if outcome != once.Ran || !ran || err != nil {
			t.Fatalf("%s, %v", outcome, err)
		}
		free, err := l.Lock(t.Context(), strings.TrimPrefix(lockOf(j.tick), "lock:")) // when the claim has ended
		if err != nil {
			t.Fatal(err)
		}
		if err := free.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.signal(syscall.SIGCONT)
		p.goOn()
		p.says("granted") // otherwise this would show nothing
		if got := p.says("outcome: "); !strings.HasPrefix(got, string(once.TooLate)) {
			t.Errorf("the instance that was stopped: %s", got)
		}
		if err := p.cmd.Wait(); err != nil {
			t.Error(err)
		}
		return
	}
}

// The server dies and comes back with its data. A tick that was run is not run again, and one that was not is run.
func TestServerIsDown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	url := "redis+rueidis://" + s.Addr()
	now := time.Now().Truncate(time.Millisecond)
	run := job{url, now, 5 * time.Minute, 10 * time.Second}
	missed := job{url, now.Add(time.Millisecond), 5 * time.Minute, 10 * time.Second}
	a, b := opened(t, url), opened(t, url)
	nothing := func(context.Context) error { return nil }
	if outcome, err := run.per(t.Context(), a, nothing); outcome != once.Ran || err != nil {
		t.Fatalf("%s, %v", outcome, err)
	}
	s.Kill()
	for _, j := range []job{run, missed} {
		if outcome, err := j.per(t.Context(), b, unexpected(t)); outcome != once.Failed ||
			!errors.Is(err, locker.ErrUnavailable) {
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
