package redistest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// slots is the number of hash slots of a Redis Cluster.
const slots = 16384

// Cluster is a Redis Cluster. Its methods belong to the test's own goroutine, like those of [Server] that can fail the
// test.
type Cluster struct {
	Masters []*Server // each with an equal share of the slots, in order
	// Replicas has one server for each master, in the same order, or none. After a failover a server stays in its field,
	// although its role has changed.
	Replicas []*Server

	ids map[*Server]string
}

// StartCluster runs a Redis Cluster until the test ends and returns once all its servers say that it is in order. args
// are for each server, as in [Start].
func StartCluster(tb testing.TB, masters int, replicated bool, args ...string) *Cluster {
	tb.Helper()
	return startCluster(tb, prepare, masters, replicated, args)
}

// StartCluster is the function of that name for servers that speak TLS only, with clients and with each other. Their
// certificates are issued by a, and they trust the client certificates of a.
func (a *Authority) StartCluster(tb testing.TB, masters int, replicated bool, args ...string) *Cluster {
	tb.Helper()
	args = append([]string{"--tls-cluster", "yes", "--tls-replication", "yes"}, args...)
	return startCluster(tb, a.prepare, masters, replicated, args)
}

func startCluster(
	tb testing.TB, prepare func(testing.TB, []string) *Server, masters int, replicated bool, args []string,
) *Cluster {
	tb.Helper()
	c := &Cluster{ids: map[*Server]string{}}
	args = append([]string{"--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0"}, args...)
	start := func() *Server {
		s := prepare(tb, args)
		s.member = true
		s.launch()
		return s
	}
	for range masters {
		c.Masters = append(c.Masters, start())
		if replicated {
			c.Replicas = append(c.Replicas, start())
		}
	}
	for i, s := range c.Servers() {
		c.ids[s] = s.Cmd(tb, "CLUSTER", "MYID").(string)
		// Epochs are different from the start. Otherwise the servers would resolve conflicts one after another.
		s.Cmd(tb, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
	}
	for i, s := range c.Masters {
		s.AddSlots(tb, i*slots/masters, (i+1)*slots/masters-1)
	}
	for _, s := range c.Servers() {
		for _, other := range c.Servers() { // every server meets all others, because gossip is slower
			if s != other {
				s.Cmd(tb, "CLUSTER", "MEET", "127.0.0.1", other.port, other.port+busOffset)
			}
		}
	}
	c.Await(tb)
	for i, r := range c.Replicas {
		r.Cmd(tb, "CLUSTER", "REPLICATE", c.ids[c.Masters[i]])
	}
	for _, r := range c.Replicas {
		r.follows(tb)
	}
	for _, s := range c.Servers() {
		await(tb, "a cluster that knows its replicas", func() bool { // a master lets only replicas that it knows take over
			nodes, _ := s.Do("CLUSTER", "NODES")
			return strings.Count(fmt.Sprint(nodes), "slave ") == len(c.Replicas)
		})
	}
	c.Await(tb)
	return c
}

// AddSlots gives a member of a cluster the slots from first to last. It names each slot, because servers before Redis 7
// do not know ADDSLOTSRANGE.
func (s *Server) AddSlots(tb testing.TB, first, last int) {
	tb.Helper()
	args := []any{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot <= last; slot++ {
		args = append(args, slot)
	}
	s.Cmd(tb, args...)
}

// Servers returns all servers: masters, then replicas.
func (c *Cluster) Servers() []*Server {
	return append(append([]*Server{}, c.Masters...), c.Replicas...)
}

// Addrs returns the addresses of all servers.
func (c *Cluster) Addrs() (addrs []string) {
	for _, s := range c.Servers() {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Await waits until every server that runs knows all others and says that the cluster is in order.
func (c *Cluster) Await(tb testing.TB) {
	tb.Helper()
	await(tb, "a cluster in order", func() bool {
		for _, s := range c.Servers() {
			if s.Pid() == 0 {
				continue
			}
			info, _ := s.Do("CLUSTER", "INFO")
			for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d\r", len(c.ids)),
				"cluster_slots_ok:16384"} {
				if !strings.Contains(fmt.Sprint(info), want) {
					return false
				}
			}
		}
		return true
	})
}

// Announce makes the cluster report another address for a server, such as that of a proxy. Clients then connect to that
// address.
func (c *Cluster) Announce(tb testing.TB, s *Server, addr string) {
	tb.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	s.Cmd(tb, "CONFIG", "SET", "cluster-announce-port", port)
	if slots := s.Cmd(tb, "CLUSTER", "SLOTS"); !strings.Contains(fmt.Sprint(slots), "127.0.0.1 "+port+" ") {
		// Before Redis 6.2, a server itself reports the port that it was started with.
		s.extra = append(s.extra, "--cluster-announce-port", port)
		s.Restart()
		c.Await(tb)
	}
	for _, other := range c.Servers() {
		await(tb, "a cluster that knows the new address", func() bool {
			slots, _ := other.Do("CLUSTER", "SLOTS")
			return strings.Contains(fmt.Sprint(slots), "127.0.0.1 "+port+" ")
		})
	}
}

// failoverLimit is how long a server tries to do a CLUSTER FAILOVER.
const failoverLimit = 5 * time.Second

// Failover makes a replica the master, with all data of its master, and returns when the failover is done. It repeats
// the command, because a replica refuses while it has lost its connection to the master, for example on a stalled
// machine, and gives up after a time-out.
func (c *Cluster) Failover(tb testing.TB, replica *Server) {
	tb.Helper()
	var over time.Time
	await(tb, "a replica that takes over", func() bool {
		if replica.IsMaster() {
			return true
		}
		if time.Now().After(over) {
			if _, err := replica.Do("CLUSTER", "FAILOVER"); err == nil {
				over = time.Now().Add(failoverLimit)
			}
		}
		return false
	})
}

// Slot returns the hash slot of key.
func (c *Cluster) Slot(tb testing.TB, key string) int {
	tb.Helper()
	return int(c.Masters[0].Cmd(tb, "CLUSTER", "KEYSLOT", key).(int64))
}

// Owner returns the master that claims to serve a slot.
func (c *Cluster) Owner(tb testing.TB, slot int) (owner *Server) {
	tb.Helper()
	await(tb, fmt.Sprintf("an owner of slot %d", slot), func() bool {
		for _, s := range c.Servers() {
			shards, err := s.Do("CLUSTER", "SLOTS")
			if err != nil {
				continue
			}
			for _, shard := range shards.([]any) {
				fields := shard.([]any)
				if from, to := fields[0].(int64), fields[1].(int64); int64(slot) < from || int64(slot) > to {
					continue
				}
				if fields[2].([]any)[2] == c.ids[s] {
					owner = s
					return true
				}
			}
		}
		return false
	})
	return owner
}

// A Move moves a slot from one master to another, in the same steps as redis-cli.
type Move struct {
	tb       testing.TB
	cluster  *Cluster
	Slot     int
	From, To *Server
}

// Move begins to move a slot. The slot is migrating until Finish, and its keys are in two places.
func (c *Cluster) Move(tb testing.TB, slot int, to *Server) *Move {
	tb.Helper()
	m := &Move{tb, c, slot, c.Owner(tb, slot), to}
	to.Cmd(tb, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[m.From])
	m.From.Cmd(tb, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to])
	return m
}

// Key moves one more key and reports whether there was one.
func (m *Move) Key() bool {
	m.tb.Helper()
	keys := m.From.Cmd(m.tb, "CLUSTER", "GETKEYSINSLOT", m.Slot, 1).([]any)
	if len(keys) == 0 {
		return false
	}
	// If the key has expired meanwhile, the answer is NOKEY, which is no error.
	m.From.Cmd(m.tb, "MIGRATE", "127.0.0.1", m.To.port, keys[0], 0, askTimeout.Milliseconds())
	return true
}

// Finish moves the keys that are left, and tells all masters which one has the slot.
func (m *Move) Finish() {
	m.tb.Helper()
	for m.Key() {
	}
	// The new owner is informed first. Otherwise no server would claim the slot for a moment.
	for _, s := range append([]*Server{m.To, m.From}, m.cluster.Servers()...) {
		if s.Pid() == 0 {
			continue
		}
		// A replica learns of the new owner from its master.
		if role := s.Cmd(m.tb, "ROLE").([]any); role[0] == "master" {
			s.Cmd(m.tb, "CLUSTER", "SETSLOT", m.Slot, "NODE", m.cluster.ids[m.To])
		}
	}
	m.cluster.awaitEpoch(m.tb)
}

// awaitEpoch waits until all servers that run know the newest epoch. If a slot moved back before, its next owner could
// take it without an epoch of its own. A message that is under way from the last one would then take it away again, and
// no server would have it.
func (c *Cluster) awaitEpoch(tb testing.TB) {
	tb.Helper()
	await(tb, "servers that know the newest epoch", func() bool {
		epochs := map[string]bool{}
		for _, s := range c.Servers() {
			if s.Pid() == 0 {
				continue
			}
			info, _ := s.Do("CLUSTER", "INFO")
			_, epoch, _ := strings.Cut(fmt.Sprint(info), "cluster_current_epoch:")
			epoch, _, _ = strings.Cut(epoch, "\r")
			epochs[epoch] = true
		}
		return len(epochs) == 1
	})
}

// await waits until cond holds. Its limit is generous, because the machine may be busy.
func await(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(testserver.StartTimeout); ; time.Sleep(5 * time.Millisecond) {
		over := time.Now().After(end) // checked first, because a stall may delay the last call of cond
		if cond() {
			return
		}
		if over {
			tb.Fatalf("redistest: not within %v: %s", testserver.StartTimeout, what)
		}
	}
}
