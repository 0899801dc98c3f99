package lockkube_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// Candidates that are processes, on real servers that lose nothing when they are killed. Each leader locks a file,
// which fails if there are two.
func TestProcesses(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (url string, s storeurl.Server){
		"Redis": func(t *testing.T) (string, storeurl.Server) {
			s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			return "redis+redigo://" + s.Addr(), s
		},
		"PostgreSQL": func(t *testing.T) (string, storeurl.Server) {
			s := pgtest.Start(t, "fsync=on")
			adapters.Migrate(t, s.URL("postgres"))
			return s.URL("postgres"), s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, s := start(t)
			for what, test := range map[string]func(t *testing.T, url, judge string){
				"killed": killed, "released": released, "stopped": stopped,
			} {
				t.Run(what, func(t *testing.T) { test(t, url, filepath.Join(t.TempDir(), "leader")) })
			}
			t.Run("down", func(t *testing.T) { down(t, url, filepath.Join(t.TempDir(), "leader"), s) })
		})
	}
}

// startCandidate starts a candidate, which campaigns in the election of the test.
func startCandidate(t *testing.T, url, identity, judge string, long ...string) *instance.Process {
	t.Helper()
	return instance.Start(t, append([]string{url, t.Name(), identity, judge}, long...)...)
}

// leads waits until a candidate leads, and returns its token.
func leads(p *instance.Process) uint64 {
	p.Helper()
	return token(p.T, p.Says("leads "))
}

func token(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Error(err)
	}
	return n
}

// killed kills the leader, twice.
func killed(t *testing.T, url, judge string) {
	leader := startCandidate(t, url, "a", judge)
	last := leads(leader)
	for _, identity := range []string{"b", "a"} { // the second one has the identity of a dead one
		next := startCandidate(t, url, identity, judge)
		next.Says("ready")
		leader.Kill()
		now := leads(next)
		if now <= last {
			t.Errorf("the token %d after %d", now, last)
		}
		leader, last = next, now
	}
}

// released ends the leader, whose lock would outlast the test otherwise.
func released(t *testing.T, url, judge string) {
	a := startCandidate(t, url, "a", judge, "long")
	last := leads(a)
	b := startCandidate(t, url, "b", judge, "long")
	b.Says("ready")
	a.GoOn()
	if now := leads(b); now <= last {
		t.Errorf("the token %d after %d", now, last)
	}
	a.Says("done")
}

// stopped stops the process of the leader. When it goes on, another one leads, and it learns that. No judge can be
// asked here: the process that is stopped has not ended its work.
func stopped(t *testing.T, url, _ string) {
	a := startCandidate(t, url, "a", "")
	last := leads(a)
	b := startCandidate(t, url, "b", "")
	b.Says("ready")
	a.Signal(syscall.SIGSTOP)
	now := leads(b)
	if now <= last {
		t.Errorf("the token %d after %d", now, last)
	}
	a.Signal(syscall.SIGCONT)
	a.Says("lost ")
	b.Kill()
	if then := leads(a); then <= now {
		t.Errorf("the token %d after %d", then, now)
	}
}

// down kills the server until the leader has stopped, and starts it again.
func down(t *testing.T, url, judge string, s storeurl.Server) {
	a := startCandidate(t, url, "a", judge)
	last := leads(a)
	b := startCandidate(t, url, "b", judge)
	b.Says("ready")
	s.Kill()
	a.Says("stopped")
	s.Restart()
	first, second, now := firstLeader(a, b)
	if now < last { // it is the same if the lease was still valid
		t.Errorf("the token %d after %d", now, last)
	}
	first.Kill()
	if then := token(t, <-second); then <= now {
		t.Errorf("the token %d after %d", then, now)
	}
}

// firstLeader waits until one of two candidates leads, and returns it with its token, and what the other one will say
// when it leads.
func firstLeader(a, b *instance.Process) (first *instance.Process, second <-chan string, now uint64) {
	said := map[*instance.Process]chan string{a: make(chan string, 1), b: make(chan string, 1)}
	for p, lines := range said {
		go func() {
			for {
				line, ok := p.Line()
				if text, leads := strings.CutPrefix(line, "leads "); leads || !ok {
					lines <- text
					return
				}
			}
		}()
	}
	select {
	case text := <-said[a]:
		return a, said[b], token(a.T, text)
	case text := <-said[b]:
		return b, said[a], token(b.T, text)
	}
}
