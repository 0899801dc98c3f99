//go:build unix

// Package etcdtest starts real members of etcd for tests, on free ports of the loopback interface, each with a
// directory of its own. They end with their test, in whatever way the test process ends.
package etcdtest

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/child"
	"github.com/golocker/locker/internal/testing/program"
)

const startTimeout = 30 * time.Second

// Member is a process of etcd. Its methods may be called from several goroutines, except Restart.
type Member struct {
	Name string

	tb                   testing.TB
	binary, dir          string
	client, peer, health string // the addresses at which the others reach it, host:port
	network              *network
	args                 []string

	mu   sync.Mutex
	proc *child.Process // nil while it is dead
}

// Start runs an etcd of one member until the test ends, and returns when it serves. Elections are quick, so that it
// grants leases of a second: the shortest TTL is one and a half election timeouts. args are appended to the command
// line.
func Start(tb testing.TB, args ...string) *Member {
	tb.Helper()
	return start(tb, 1, "http", append(quick, args...)...)[0]
}

var quick = []string{"--heartbeat-interval=50", "--election-timeout=500"}

// StartTLS is Start with certificates, for an etcd that also asks its clients for one. The arguments are files.
func StartTLS(tb testing.TB, ca, cert, key string, args ...string) *Member {
	tb.Helper()
	args = append(args, "--client-cert-auth", "--trusted-ca-file="+ca, "--cert-file="+cert, "--key-file="+key)
	return start(tb, 1, "https", append(quick, args...)...)[0]
}

// StartCluster is Start for several members, with the default times.
func StartCluster(tb testing.TB, n int, args ...string) []*Member {
	tb.Helper()
	return start(tb, n, "http", args...)
}

func start(tb testing.TB, n int, scheme string, args ...string) []*Member {
	tb.Helper()
	binary := program.Build(tb, "go.etcd.io/etcd/server/v3")
	members := make([]*Member, n)
	between := newNetwork()
	var initial []string
	var listen []string
	for i := range members {
		dir, err := os.MkdirTemp("", "etcdtest")
		if err != nil {
			tb.Fatalf("etcdtest: %v", err)
		}
		m := &Member{Name: fmt.Sprintf("m%d", i+1), tb: tb, binary: binary, dir: dir, client: free(), health: free()}
		listen = append(listen, free())
		m.network, m.peer = between, between.relay(tb, listen[i])
		tb.Cleanup(func() {
			m.Kill()
			_ = os.RemoveAll(dir)
		})
		members[i] = m
		initial = append(initial, m.Name+"=http://"+m.peer)
	}
	for i, m := range members {
		m.args = append([]string{
			"--name=" + m.Name, "--data-dir=" + filepath.Join(m.dir, "data"),
			"--listen-client-urls=" + scheme + "://" + m.client, "--advertise-client-urls=" + scheme + "://" + m.client,
			"--listen-metrics-urls=http://" + m.health,
			"--listen-peer-urls=http://" + listen[i], "--initial-advertise-peer-urls=http://" + m.peer,
			"--initial-cluster=" + strings.Join(initial, ","), "--initial-cluster-token=" + filepath.Base(members[0].dir),
			"--log-level=warn", "--log-outputs=" + m.log(), "--unsafe-no-fsync",
		}, args...)
		m.Start()
	}
	for _, m := range members {
		m.await()
	}
	return members
}

// free returns an address at which nobody listens. It is below the ports that the kernel assigns by itself, so that a
// member that was killed finds it free when it starts again.
func free() string {
	for {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
}

func (m *Member) log() string { return filepath.Join(m.dir, "log") }

// Addr returns the address for clients, host:port.
func (m *Member) Addr() string { return m.client }

// Start starts the process, again if it was killed, and does not wait until the member serves.
func (m *Member) Start() {
	m.tb.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := child.Spawn(m.binary, m.dir, nil, m.args)
	if err != nil {
		m.tb.Fatalf("etcdtest: %v", err)
	}
	m.proc = p
}

// await waits until the member serves.
func (m *Member) await() {
	m.tb.Helper()
	for end := time.Now().Add(startTimeout); !m.Healthy(); time.Sleep(5 * time.Millisecond) {
		if m.proc.Exited() || time.Now().After(end) {
			text, _ := os.ReadFile(m.log())
			m.tb.Fatalf("etcdtest: %s does not serve:\n%s", m.Name, text)
		}
	}
}

// probe bounds a request for the health of a member. It does not keep connections, which would outlive the test.
var probe = http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Healthy reports whether the member serves, which needs a leader.
func (m *Member) Healthy() bool {
	resp, err := probe.Get("http://" + m.health + "/health")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK && strings.Contains(string(text), `"health":"true"`)
}

// Pause freezes the member (SIGSTOP). It executes what it was sent meanwhile after Resume.
func (m *Member) Pause() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc != nil {
		m.proc.Freeze()
	}
}

// Resume continues a paused member (SIGCONT).
func (m *Member) Resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc != nil {
		m.proc.Signal(syscall.SIGCONT)
	}
}

// Isolate cuts the member off from the other members. Clients still reach it.
func (m *Member) Isolate() { m.network.isolate(m.peer) }

// Rejoin ends the effect of Isolate.
func (m *Member) Rejoin() { m.network.join(m.peer) }

// Kill ends the member at once (SIGKILL), and returns when the process has ended. Killing a dead one has no effect.
func (m *Member) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc == nil {
		return
	}
	m.proc.Kill()
	m.proc = nil
}

// Restart kills the member and starts it again with its data. It returns when the member serves.
func (m *Member) Restart() {
	m.tb.Helper()
	m.Kill()
	m.Start()
	m.await()
}

// Metric returns the sum of all values of a metric of the member.
func (m *Member) Metric(name string) (sum float64) {
	m.tb.Helper()
	resp, err := probe.Get("http://" + m.health + "/metrics")
	if err != nil {
		m.tb.Fatalf("etcdtest: %v", err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		metric, value, ok := strings.Cut(lines.Text(), " ")
		if i := strings.IndexByte(lines.Text(), '}'); i >= 0 {
			metric, value, ok = lines.Text()[:i], strings.TrimSpace(lines.Text()[i+1:]), true
		}
		of, _, _ := strings.Cut(metric, "{")
		if n, err := strconv.ParseFloat(value, 64); ok && of == name && err == nil {
			sum += n
		}
	}
	return sum
}
