package examples_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

// servers starts n servers with the password of redisURL.
func servers(t *testing.T, n int) []*redistest.Server {
	t.Helper()
	var ss []*redistest.Server
	for range n {
		ss = append(ss, redistest.Start(t, "--requirepass", "hunter2"))
	}
	return ss
}

func redlockURL(driver string, ss ...*redistest.Server) string {
	var hosts []string
	for _, s := range ss {
		hosts = append(hosts, s.Addr())
	}
	return "redlock+" + driver + "://:hunter2@" + strings.Join(hosts, ",") + "?budget=5s" // enough on a busy machine
}

// redlock is a Redlock on some of a test's servers, with a prefix that no other one has.
type redlock struct {
	driver string
	nodes  []*redistest.Server
	shared bool // the other drivers use the same locks
}

func (r redlock) String() string { return fmt.Sprintf("%d nodes, %s", len(r.nodes), r.driver) }
func (r redlock) url() string    { return redlockURL(r.driver, r.nodes...) + "&prefix=" + r.prefix() }
func (r redlock) prefix() string {
	if r.shared {
		return fmt.Sprintf("%d:", len(r.nodes))
	}
	return fmt.Sprintf("%s%d:", r.driver, len(r.nodes))
}

// run starts an example over the Redlock, with more in its URL.
func (r redlock) run(t *testing.T, name, more string, args ...string) *program {
	t.Helper()
	journal := filepath.Join(t.TempDir(), "journal")
	return r.warned(start(t, name, []string{"LOCKER_URL=" + r.url() + more, "LOCKER_JOURNAL=" + journal}, args...))
}

// warned checks that p, which was started over the Redlock, warns of the Redlock's faults.
func (r redlock) warned(p *program) *program {
	if len(r.nodes) == 1 {
		p.warns = `\S+ \S+ WARN redlock: fewer than three nodes survive no failure nodes=1\n`
	}
	return p
}

// file writes a configuration file for the Redlock, with a driver for each node.
func (r redlock) file(t *testing.T, drivers ...string) (path string) {
	t.Helper()
	lines := []string{
		"backend: redlock", "prefix: '" + r.prefix() + "'", "redlock:", "  password: hunter2", "  budget: 5s", "  nodes:",
	}
	for i, s := range r.nodes {
		lines = append(lines, fmt.Sprintf("    - {name: n%d, addr: '%s', driver: %s}", i, s.Addr(), drivers[i%len(drivers)]))
	}
	path = filepath.Join(t.TempDir(), "l.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	return path
}

// TestRedlocks runs the examples over Redlocks of one, three and five servers, with each driver side by side.
func TestRedlocks(t *testing.T) {
	t.Parallel()
	ss := servers(t, 5)
	for name, example := range map[string]struct {
		begin func(t *testing.T, r redlock) *program
		end   func(t *testing.T, r redlock, p *program)
	}{
		"quickstart": {
			func(t *testing.T, r redlock) *program { return r.run(t, "quickstart", "") },
			func(t *testing.T, _ redlock, p *program) { p.succeeds(t, ok) },
		},
		"config": {
			func(t *testing.T, r redlock) *program {
				return r.warned(start(t, "config", nil, "-config", r.file(t, r.driver)))
			},
			func(t *testing.T, _ redlock, p *program) { p.succeeds(t, `^ok: 3 workers took turns, 15 in all$`) },
		},
		"fencing": {
			// An attempt waits for half of its TTL. In this example some machines stall for longer than that.
			func(t *testing.T, r redlock) *program { return r.run(t, "fencing", "&retry=true") },
			func(t *testing.T, _ redlock, p *program) { p.fenced(t) },
		},
		"leader": {
			func(t *testing.T, r redlock) *program {
				return r.run(t, "leader", "&ttl=5s", "-term", "200ms", "-for", "0", "-tick", "20ms")
			},
			func(t *testing.T, _ redlock, p *program) { p.changesHands(t) },
		},
		"cron": {
			func(t *testing.T, r redlock) *program { return r.run(t, "cron", "") },
			func(t *testing.T, r redlock, p *program) { ranOnce(t, len(r.nodes) == 1, p) },
		},
		"cronjob": {
			func(t *testing.T, r redlock) *program {
				buildModule(t, "../cmd/locker")
				return cronjob(t, r.url())
			},
			func(t *testing.T, r redlock, p *program) { ranByTheFirst(t, r.url(), p) },
		},
		"observability": {
			// Without a lock that all drivers share, three processes that never pause would take all processor time.
			func(t *testing.T, r redlock) *program {
				buildModule(t, "observability")
				r.shared = true
				return r.run(t, "observability", "", "-workers", "2", "-for", "3s")
			},
			func(t *testing.T, _ redlock, p *program) {
				metrics, events := p.telemetry(t)
				assert.Contains(t, metrics, "locker.node.vote.duration")
				assert.Contains(t, events, "locker.vote")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, n := range short.Part(t, 1, []int{1, 3, 5}) {
				rs, ps := make([]redlock, len(drivers)), make([]*program, len(drivers))
				for i, driver := range drivers {
					rs[i] = redlock{driver: driver, nodes: ss[:n]}
					ps[i] = example.begin(t, rs[i])
				}
				for i, r := range rs {
					t.Run(r.String(), func(t *testing.T) { example.end(t, r, ps[i]) })
				}
			}
		})
	}
}

// A Redlock of one has no majority that could hide a mistake, such as a release that meets another attempt's token.
func TestQuickstartOnRedlockOfOne(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2")
	journal := filepath.Join(t.TempDir(), "journal")
	var ps []*program
	for range 2 {
		for _, driver := range drivers {
			ps = append(ps, start(t, "quickstart", []string{"LOCKER_URL=" + redlockURL(driver, s), "LOCKER_JOURNAL=" + journal}))
		}
	}
	for _, p := range ps {
		assert.Zero(t, p.wait(t), p.stdout.String()+p.stderr.String())
	}
}

// TestQuickstartOnRedlockProcesses lets processes with different drivers contend for one lock, once with all nodes,
// and once with one of three dead before the start.
func TestQuickstartOnRedlockProcesses(t *testing.T) {
	t.Parallel()
	type run struct {
		journal string
		ps      []*program
	}
	var runs []run // at the same time, because they mostly sleep
	for _, alive := range []int{3, 2} {
		ss := servers(t, 3)
		if alive == 2 {
			ss[1].Kill()
		}
		r := run{journal: filepath.Join(t.TempDir(), "journal")}
		for _, driver := range drivers {
			env := []string{"LOCKER_URL=" + redlockURL(driver, ss...), "LOCKER_JOURNAL=" + r.journal}
			r.ps = append(r.ps, start(t, "quickstart", env))
		}
		runs = append(runs, r)
	}
	for _, r := range runs {
		for _, p := range r.ps {
			p.succeeds(t, `^ok: \d+ turns, none overlapped`)
		}
		text, err := os.ReadFile(r.journal)
		require.NoError(t, err)
		assert.Equal(t, 120, bytes.Count(text, []byte("start")))
		assert.Equal(t, 120, bytes.Count(text, []byte("end")))
		holders := map[string]bool{}
		for _, h := range regexp.MustCompile(`(?m)^start \d+ (\d+)/`).FindAllStringSubmatch(string(text), -1) {
			holders[h[1]] = true
		}
		assert.Len(t, holders, len(drivers))
	}
}

func TestQuickstartRedlockMistakes(t *testing.T) {
	t.Parallel()
	ss := servers(t, 2)
	dead := redistest.Start(t)
	dead.Kill()
	alias := strings.Replace(ss[0].Addr(), "127.0.0.1", "localhost", 1)
	quickstart := func(url string) *program { return start(t, "quickstart", []string{"LOCKER_URL=" + url}) }
	twice := quickstart("redlock://:hunter2@" + ss[0].Addr() + "," + dead.Addr() + "," + alias)
	assert.Equal(t, 1, twice.wait(t))
	assert.Contains(t, twice.stderr.String(), "no quorum: ")
	assert.Contains(t, twice.stderr.String(), ss[0].Addr()+" and "+alias+" are the same server")
	quickstart("redlock://:hunter2@"+ss[0].Addr()+","+ss[1].Addr()+","+ss[0].Addr()).
		fails(t, "nodes[2].addr: the same as nodes[0].addr")
	quickstart("redis://:hunter2@"+ss[0].Addr()+","+ss[1].Addr()).fails(t, "redlock://h1,h2,h3")
	for _, driver := range drivers {
		p := quickstart(strings.Replace(redlockURL(driver, ss[0], dead, ss[1]), "hunter2", "hunter2x", 1))
		p.fails(t, "no quorum: ")
		assert.Contains(t, p.stderr.String(), "WRONGPASS")
	}
}

func TestConfigRedlock(t *testing.T) {
	t.Parallel()
	path := redlock{driver: "mixed", nodes: servers(t, 3)}.file(t, drivers...)
	p := start(t, "config", nil, "-config", path)
	p.succeeds(t, `^ok: 3 workers took turns, 15 in all$`)
	const from = `(?m)^locks from redlock://:\[REDACTED\]@127.*prefix=mixed3%3A#nodes\[0\].name=n0&.*driver=rueidis$`
	assert.Regexp(t, from, p.stdout.String())
	start(t, "config", []string{"LOCKER_REDLOCK_NODES=a,b,A"}, "-config", path).
		fails(t, "LOCKER_REDLOCK_NODES[2].addr: the same as nodes[0].addr")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte("name: n2"), []byte("name: n0"), 1), 0o600))
	start(t, "config", nil, "-config", path).fails(t, "l.yaml:9: redlock.nodes[2].name: the same as that of nodes[0]")
}
