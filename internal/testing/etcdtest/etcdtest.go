//go:build unix

// Package etcdtest starts real members of etcd for tests, on free ports of the loopback interface, each with a
// directory of its own. They end with their test, in whatever way the test process ends.
package etcdtest

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// Member is a process of etcd. Its methods may be called from several goroutines, except Restart.
type Member struct {
	testserver.Server
	Name string

	tb                           testing.TB
	binary, dir                  string
	client, listen, peer, health string // addresses, host:port; the other members reach listen by peer, that of a relay
	network                      *network
	args                         []string
}

// NoFsync is the variable by which etcd does not wait for its disk. Members are started with true, because tests do not
// lose power, unless the variable is set already. A test whose etcd has to write to its disk sets it to false.
const NoFsync = "ETCD_UNSAFE_NO_FSYNC"

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
	binary := testserver.Build(tb, "go.etcd.io/etcd/server/v3")
	members := make([]*Member, n)
	between := newNetwork()
	var initial []string
	for i := range members {
		dir, err := os.MkdirTemp("", "etcdtest") //nolint:usetesting // a unix socket's path must be short
		if err != nil {
			tb.Fatalf("etcdtest: %v", err)
		}
		m := &Member{Name: fmt.Sprintf("m%d", i+1), tb: tb, binary: binary, dir: dir, network: between}
		m.client, m.listen, m.health = testserver.FreeAddr(tb), testserver.FreeAddr(tb), testserver.FreeAddr(tb)
		m.peer = between.relay(tb, m.listen)
		tb.Cleanup(func() {
			m.Kill()
			_ = os.RemoveAll(dir)
		})
		members[i] = m
		initial = append(initial, m.Name+"=http://"+m.peer)
	}
	for _, m := range members {
		m.args = append([]string{
			"--name=" + m.Name, "--data-dir=" + filepath.Join(m.dir, "data"),
			"--listen-client-urls=" + scheme + "://" + m.client, "--advertise-client-urls=" + scheme + "://" + m.client,
			"--listen-metrics-urls=http://" + m.health,
			"--listen-peer-urls=http://" + m.listen, "--initial-advertise-peer-urls=http://" + m.peer,
			"--initial-cluster=" + strings.Join(initial, ","), "--initial-cluster-token=" + filepath.Base(members[0].dir),
			"--log-level=warn", "--log-outputs=" + m.log(),
		}, args...)
		m.Start()
	}
	for _, m := range members {
		m.await()
	}
	return members
}

func (m *Member) log() string { return filepath.Join(m.dir, "log") }

// Addr returns the address for clients, host:port.
func (m *Member) Addr() string { return m.client }

// Start starts the process, again if it was killed, and does not wait until the member serves.
func (m *Member) Start() {
	m.tb.Helper()
	var env []string
	if os.Getenv(NoFsync) == "" {
		env = []string{NoFsync + "=true"}
	}
	if err := m.Launch(m.binary, m.dir, env, m.args); err != nil {
		m.tb.Fatalf("etcdtest: %v", err)
	}
}

// await waits until the member serves.
func (m *Member) await() {
	m.tb.Helper()
	if err := m.Await(m.Healthy); err != nil {
		text, _ := os.ReadFile(m.log())
		m.tb.Fatalf("etcdtest: %s: %v:\n%s", m.Name, err, text)
	}
}

// get makes a request for the health of a member, or for its metrics. It does not keep connections, which would outlive
// the test.
func (m *Member) get(path string, timeout time.Duration) (*http.Response, error) {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	return client.Get("http://" + m.health + path)
}

// Healthy reports whether the member serves, which needs a leader.
func (m *Member) Healthy() bool {
	resp, err := m.get("/health", 2*time.Second)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK && strings.Contains(string(text), `"health":"true"`)
}

// Isolate cuts the member off from the other members. Clients still reach it.
func (m *Member) Isolate() { m.network.isolate(true, m) }

// Rejoin ends the effect of Isolate.
func (m *Member) Rejoin() { m.network.isolate(false, m) }

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
	resp, err := m.get("/metrics", testserver.StartTimeout)
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
