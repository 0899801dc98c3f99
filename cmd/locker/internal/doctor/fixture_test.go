package doctor_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
)

// durable has the settings for persistence that docs/safety.md asks for.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// usual is the TTL of locks. Servers that run for less have just started: so all servers of tests have.
const usual = 10 * time.Minute

// fixture is a set of servers and the examination of them.
type fixture struct {
	doctor.Deployment
	servers []*redistest.Server
}

// startServers starts n healthy servers.
func startServers(t *testing.T, n int, driver string) *fixture {
	t.Helper()
	h := &fixture{Deployment: doctor.Deployment{
		Redlock: n > 1, Prefix: "lock:", TTL: usual, Timeout: 5 * time.Second, Budget: time.Second,
	}}
	for range n {
		s := redistest.Start(t, durable...)
		h.servers = append(h.servers, s)
		h.add(t, driver, drivers.Config{Addr: s.Addr()})
	}
	return h
}

func (h *fixture) add(t *testing.T, driver string, c drivers.Config) {
	t.Helper()
	c.Network = cmp.Or(c.Network, "tcp")
	d, err := drivers.Open(t.Context(), driver, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	dial := drivers.Config{Network: c.Network, Addr: c.Addr, TLS: c.TLS}
	h.Nodes = append(h.Nodes, doctor.Node{Name: c.Addr, Username: c.Username, Driver: d, Dial: dial})
}

func (h *fixture) replace(t *testing.T, i int, driver string, c drivers.Config) {
	t.Helper()
	h.add(t, driver, c)
	last := len(h.Nodes) - 1
	h.Nodes[i], h.Nodes = h.Nodes[last], h.Nodes[:last]
}

// want runs the examination and checks its findings that are not ok. Each of want is "level node check: part of the
// text". There must be no others. If the machine has stalled for so long that answers were late, want examines again.
func (h *fixture) want(t *testing.T, want ...string) (r doctor.Report) {
	t.Helper()
	var wrong []string
	for range 5 {
		r = doctor.Examine(t.Context(), h.Deployment, nil)
		if wrong = h.compare(r, want); !slices.ContainsFunc(wrong, isLate) {
			break
		}
	}
	for _, w := range wrong {
		t.Error(w)
	}
	for i, s := range h.servers {
		if s.Pid() == 0 {
			continue
		}
		if keys := s.Left(t); len(keys) > 0 {
			t.Errorf("left on node %d: %q", i+1, keys)
		}
	}
	return r
}

// isLate reports whether a finding that is not wanted may come from a stall.
func isLate(wrong string) bool {
	return strings.HasPrefix(wrong, "found ") && (strings.Contains(wrong, "no answer") ||
		strings.Contains(wrong, "timeout") || strings.Contains(wrong, "deadline exceeded"))
}

// compare returns what is wrong with a report.
func (h *fixture) compare(r doctor.Report, want []string) (wrong []string) {
	worst := doctor.OK
	left := want
	for _, f := range r.Findings {
		if f.Level == doctor.OK {
			continue
		}
		if f.Level.Worse(worst) {
			worst = f.Level
		}
		if f.Fix == "" {
			wrong = append(wrong, fmt.Sprintf("no word on what to do: %+v", f))
		}
		node := "all"
		for i, n := range h.Nodes {
			if n.Name == f.Node {
				node = fmt.Sprint(i + 1)
			}
		}
		is := fmt.Sprintf("%s %s %s: %s", f.Level, node, f.Check, f.Text)
		found := false
		for i, w := range left {
			head, part, _ := strings.Cut(w, ": ")
			if strings.HasPrefix(is, head+": ") && strings.Contains(is, part) {
				left = append(append([]string(nil), left[:i]...), left[i+1:]...)
				found = true
				break
			}
		}
		if !found && f.Check != "latency" { // the machine may be busy
			wrong = append(wrong, fmt.Sprintf("found %s (fix: %s)", is, f.Fix))
		}
	}
	for _, w := range left {
		wrong = append(wrong, "not found: "+w)
	}
	if r.Level != worst {
		wrong = append(wrong, fmt.Sprintf("the whole is %s, the worst %s", r.Level, worst))
	}
	return wrong
}
