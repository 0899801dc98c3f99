package examples_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
)

func TestLeaderInMemory(t *testing.T) {
	t.Parallel()
	p := start(t, "leader", nil, "-for", "2s", "-term", "300ms", "-tick", "50ms")
	p.succeeds(t, `^ok: \d{2} ticks in \d+ terms of office$`)
	led := map[string]bool{}
	leads := regexp.MustCompile(`candidate \d+/(\d)  leads, with token \d+\n`)
	for _, m := range leads.FindAllStringSubmatch(p.stdout.String(), -1) {
		led[m[1]] = true
	}
	assert.Len(t, led, 3, p.stdout.String())
	left, err := filepath.Glob(p.env("TMPDIR") + "/*")
	require.NoError(t, err)
	assert.Empty(t, left, "temporary files")
}

// tick is a line of the log that leaders work on.
type tick struct {
	token uint64
	who   string
}

type leaders struct {
	*testing.T
	journal string
}

func (o *leaders) ticks() (ts []tick) {
	text, _ := os.ReadFile(o.journal)
	for line := range strings.Lines(string(text)) {
		var i tick
		_, err := fmt.Sscan(line, &i.token, &i.who)
		require.NoError(o, err, line)
		ts = append(ts, i)
	}
	return ts
}

// next waits until one of ps, and no other process, has done a piece of work that is not among the first n in the
// log. It returns that process.
func (o *leaders) next(n int, within time.Duration, ps ...*program) *program {
	o.Helper()
	var more []tick
	require.Eventually(o, func() bool {
		more = o.ticks()[n:]
		return len(more) > 0
	}, within, time.Millisecond, "nobody leads")
	for _, p := range ps {
		if fmt.Sprint(p.Process.Pid, "/1") == more[0].who {
			return p
		}
	}
	require.Failf(o, "the wrong one leads", "%v", more)
	return nil
}

// inOrder checks that no leader worked beside or after one with a greater token.
func (o *leaders) inOrder() {
	o.Helper()
	last := tick{}
	for _, i := range o.ticks() {
		if i.token < last.token || i.token == last.token && i.who != last.who {
			o.Errorf("after %v came %v", last, i)
		}
		last = i
	}
}

// changesHands waits until the candidates of p have taken turns, and ends it.
func (p *program) changesHands(t *testing.T) {
	t.Helper()
	o := &leaders{t, p.env("LOCKER_JOURNAL")}
	require.Eventually(t, func() bool {
		leaders := map[string]bool{}
		for _, i := range o.ticks() {
			leaders[i.who] = true
		}
		return len(leaders) == 3
	}, 30*time.Second, 5*time.Millisecond, "not all candidates have led")
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.succeeds(t, `^ok: \d+ ticks in \d+ terms of office$`)
	o.inOrder()
}

// TestLeader ends leaders in all ways. Each time another process takes over, and no process leads that should not.
func TestLeader(t *testing.T) {
	const ttl = 5 * time.Second // more than a machine may stall a leader
	t.Parallel()
	one, three := servers(t, 1), servers(t, 3)
	for name, urls := range map[string]func(driver string) string{
		"redis":   func(driver string) string { return url(driver, one[0]) + "?ttl=5s" },
		"redlock": func(driver string) string { return redlockURL(driver, three...) + "&ttl=5s" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &leaders{t, filepath.Join(t.TempDir(), "journal")}
			candidate := func(driver string) *program {
				return start(t, "leader", []string{"LOCKER_URL=" + urls(driver), "LOCKER_JOURNAL=" + o.journal},
					"-candidates", "1", "-term", "0", "-for", "0", "-tick", "20ms")
			}
			const hangLimit = 20 * time.Second
			var rest []*program // they compete
			leads := func(within time.Duration, n int) *program {
				t.Helper()
				p := o.next(n, within, rest...)
				for i := range rest {
					if rest[i] == p {
						rest = append(rest[:i:i], rest[i+1:]...)
						break
					}
				}
				return p
			}
			ends := func(p *program) {
				t.Helper()
				require.NoError(t, p.Process.Signal(syscall.SIGINT))
				p.succeeds(t, `^ok: \d+ ticks in \d+ terms of office$`)
			}
			for _, driver := range drivers {
				rest = append(rest, candidate(driver))
			}

			first := leads(hangLimit, 0)
			ends(first)
			second := leads(hangLimit, len(o.ticks()))
			assert.Contains(t, first.stdout.String(), "steps down")

			require.NoError(t, second.Process.Kill())
			_ = second.Wait()
			third := leads(ttl+5*time.Second, len(o.ticks())) // the promise is ttl, for an idle machine

			// The leader is stopped in the middle of its term, between two pieces of work.
			rest = append(rest, candidate(drivers[0]))
			n := len(o.ticks())
			o.next(n, hangLimit, third)
			require.NoError(t, third.Process.Signal(syscall.SIGSTOP))
			fourth := leads(ttl+5*time.Second, stopped(t, o))
			rest = append(rest, third)
			require.NoError(t, third.Process.Signal(syscall.SIGCONT))
			n = len(o.ticks())
			require.Eventually(t, func() bool { return len(o.ticks()) > n+20 }, hangLimit, time.Millisecond)
			ends(fourth)
			require.Same(t, third, leads(hangLimit, len(o.ticks())))
			ends(third)
			assert.Contains(t, third.stdout.String(), "lock lost: expired")

			o.inOrder()
		})
	}
}

// stopped returns the length of the log when a process that was stopped has really stopped.
func stopped(t *testing.T, o *leaders) int {
	t.Helper()
	n, since := len(o.ticks()), time.Now()
	require.Eventually(t, func() bool {
		if m := len(o.ticks()); m != n {
			n, since = m, time.Now()
		}
		return time.Since(since) > 200*time.Millisecond // ten ticks
	}, 10*time.Second, 5*time.Millisecond)
	return n
}

// TestCron checks that of three processes with different clocks exactly one runs each tick.
func TestCron(t *testing.T) {
	t.Parallel()
	one, three := servers(t, 1), servers(t, 3)
	memory := start(t, "cron", nil)
	var single, redlock []*program
	for i, driver := range drivers {
		args := []string{"-workers", "1", "-skew", fmt.Sprintf("%dms", 100*(i-1))}
		single = append(single, start(t, "cron", []string{"LOCKER_URL=" + url(driver, one[0])}, args...))
		redlock = append(redlock, start(t, "cron", []string{"LOCKER_URL=" + redlockURL(driver, three...)}, args...))
	}
	ranOnce(t, true, memory)
	ranOnce(t, true, single...)
	ranOnce(t, false, redlock...)
}

// ranOnce waits for the ends. It checks that no tick was run twice and none was left out. With several nodes a few
// may be left out if the machine stalls: processes that ask at the same moment keep each other out, and settle that
// within a second.
func ranOnce(t *testing.T, always bool, ps ...*program) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^tick (\S+)  worker \d+/\d  (ran|skipped)`)
	ran, tried := map[string]int{}, map[string]bool{}
	for _, p := range ps {
		p.succeeds(t, `^ok: \d+ ticks ran, \d+ were skipped$`)
		lines := line.FindAllStringSubmatch(p.stdout.String(), -1)
		assert.Len(t, lines, 15/len(ps), p.stdout.String())
		for _, m := range lines {
			tried[m[1]] = true
			if m[2] == "ran" {
				ran[m[1]]++
			}
		}
	}
	assert.GreaterOrEqual(t, len(tried), 5)
	for tick := range tried {
		assert.LessOrEqual(t, ran[tick], 1, tick)
	}
	if always {
		assert.Len(t, ran, len(tried))
	}
	assert.NotEmpty(t, ran)
}

// TestCronInterrupted checks that Ctrl-C ends a cron that runs without a limit.
func TestCronInterrupted(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := start(t, "cron", []string{"LOCKER_URL=redis://" + s.Addr()}, "-ticks", "0", "-every", "50ms")
	require.Eventually(t, func() bool { return len(s.Keys(t, "lock:cron:report@*")) > 2 }, 20*time.Second,
		5*time.Millisecond)
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.succeeds(t, `^ok: \d+ ticks ran, \d+ were skipped$`)
}
