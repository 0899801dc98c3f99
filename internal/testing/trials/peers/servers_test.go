package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/child"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
)

// The servers of libraries. Those of Redis keep nothing, as its default is between two snapshots. The others keep what
// they have said that they have.
const (
	oneRedis  = "Redis"
	fiveRedis = "Redis, 5 servers"
	etcd      = "etcd, 3 members"
	postgres  = "PostgreSQL"
)

// trial is a library with its servers and processes.
type trial struct {
	*testing.T
	peer    peer
	servers []server
	at      func(addrs string) string // the URL of the servers
	members []*etcdtest.Member
	replica *redistest.Server // nil: there is none
	all     []*process
	number  int // of processes so far

	mu    sync.Mutex
	holds map[string]word
}

type server interface {
	Restart() // by SIGKILL
}

func newTrial(t *testing.T, p peer, replicated bool) *trial {
	tr := &trial{T: t, peer: p, holds: map[string]word{}, at: func(addrs string) string { return "redis://" + addrs }}
	redises := 1
	switch p.on {
	case fiveRedis:
		redises = 5
		fallthrough
	case oneRedis:
		for range redises {
			tr.servers = append(tr.servers, redistest.Start(t))
		}
		if replicated {
			tr.replica = redistest.StartReplica(t, tr.servers[0].(*redistest.Server))
		}
	case etcd:
		t.Setenv(etcdtest.NoFsync, "false")
		tr.at = func(addrs string) string { return "etcd://" + addrs }
		for _, m := range etcdtest.StartCluster(t, 3) {
			tr.members, tr.servers = append(tr.members, m), append(tr.servers, m)
		}
	case postgres:
		s := pgtest.Start(t, "fsync=on")
		tr.servers = append(tr.servers, s)
		tr.at = func(addrs string) string { return "postgres://postgres@" + addrs + "/postgres?sslmode=disable" }
		db, err := pgx.Connect(t.Context(), s.URL("postgres"))
		if err == nil {
			_, err = postgreslock.Migrate(t.Context(), db)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = db.Close(t.Context())
	}
	return tr
}

// addrs returns the addresses of the servers.
func (tr *trial) addrs() (addrs []string) {
	for _, s := range tr.servers {
		switch s := s.(type) {
		case *redistest.Server:
			addrs = append(addrs, s.Addr())
		case *etcdtest.Member:
			addrs = append(addrs, s.Addr())
		case *pgtest.Server:
			addrs = append(addrs, s.Socket())
		}
	}
	return addrs
}

// failOver kills the server. Its replica, which has heard nothing for longer than the TTL, takes its place.
func (tr *trial) failOver() {
	master, next := tr.servers[0].(*redistest.Server), tr.replica
	next.Follow(tr, master)
	_, _ = next.Do("REPLICAOF", "NO", "ONE")
	<-time.After(ttl + ttl/20)
	master.Kill()
	tr.servers[0], tr.replica = next, master
	for _, p := range tr.all {
		p.ways[0].To(next.Addr())
		p.ways[0].Cut()
	}
	master.Restart()
}

// leaderStops lets etcd's leader stand still until leases end, and go on in jerks, as a machine does that wakes. It may
// then end leases that its successor has renewed meanwhile. Half of the processes hear nothing at that time.
func (tr *trial) leaderStops() {
	leads := func(m *etcdtest.Member) bool { return m.Metric("etcd_server_is_leader") > 0 }
	leader := tr.members[max(0, slices.IndexFunc(tr.members, leads))] // or any, during an election
	leader.Pause()
	<-time.After(2*ttl + rand.N(2*ttl))
	for i, p := range tr.all {
		for _, w := range p.ways[:len(p.ways)*(i%2)] {
			defer w.Hang()()
		}
	}
	<-time.After(50 * time.Millisecond)
	for range 20 {
		leader.Resume()
		<-time.After(2 * time.Millisecond)
		leader.Pause()
		<-time.After(5 * time.Millisecond)
	}
	leader.Resume()
	<-time.After(2 * ttl)
}

// process is a worker and its ways to the servers.
type process struct {
	plan
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ways  []*testserver.Relay
	over  sync.WaitGroup
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

// replace kills the i-th process, and starts another one in its place.
func (tr *trial) replace(i int) {
	old := tr.all[i]
	old.kill()
	old.over.Wait()
	tr.all[i] = tr.start(old.plan, old.ways)
}

// start starts a process with its own ways to the servers.
func (tr *trial) start(p plan, ways []*testserver.Relay) *process {
	tr.Helper()
	if ways == nil {
		var addrs []string
		for _, addr := range tr.addrs() {
			way := testserver.NewRelay(tr, addr, func() (there, back testserver.Side) {
				return testserver.Side{Read: testserver.Chunks()}, testserver.Side{Read: testserver.Chunks()}
			})
			ways, addrs = append(ways, way), append(addrs, way.Addr())
		}
		p.At = tr.at(strings.Join(addrs, ","))
	}
	tr.number++
	p.Who = tr.number
	text, err := json.Marshal(p)
	if err != nil {
		tr.Fatal(err)
	}
	one := &process{plan: p, cmd: exec.Command(os.Args[0]), ways: ways}
	one.cmd.Env = append(os.Environ(), planEnv+"="+string(text))
	one.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var complaints bytes.Buffer // clients log each fault, and a panic ends the process
	one.cmd.Stderr = &complaints
	stdin, err1 := one.cmd.StdinPipe()
	stdout, err2 := one.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, one.cmd.Start()); err != nil {
		tr.Fatal(err)
	}
	one.stdin = stdin
	leash, err := child.NewLeash(one.cmd.Process.Pid, "")
	one.over.Go(func() {
		for in := json.NewDecoder(stdout); ; {
			var w word
			if in.Decode(&w) != nil { // the end, or the last line of a process that was killed
				break
			}
			tr.mu.Lock()
			tr.holds[w.Lease] = w
			tr.mu.Unlock()
		}
		if _ = one.cmd.Wait(); one.cmd.ProcessState.Exited() && !one.cmd.ProcessState.Success() {
			tr.Errorf("process %d: %s", p.Who, &complaints)
		}
		if err == nil {
			leash.Off()
		}
	})
	tr.Cleanup(func() {
		one.kill()
		one.over.Wait()
	})
	if err != nil {
		tr.Fatal(err)
	}
	return one
}

// heard returns all holds so far.
func (tr *trial) heard() []word {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Collect(maps.Values(tr.holds))
}
