// Package deployment starts every kind of store, for trials whose processes reach its servers over networks that fail.
package deployment

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/testserver"
)

// Deployment is a kind of store.
type Deployment struct {
	Name string
	// Start starts its servers, until the test ends.
	Start func(testing.TB) *Store
	// Light says that it needs no server that has to be installed.
	Light bool
}

// Store is the servers of a deployment.
type Store struct {
	Servers []Server                  // none if the store is a directory
	Mishaps *Mishaps                  // of requests over HTTP; nil if the servers speak something else
	Leader  func() Server             // that leads the others now; nil if none does
	url     func(addrs string) string // at which a client opens the store through other addresses of the servers
}

// Server keeps its data when it is killed, because a lock that is forgotten has two holders.
type Server struct {
	addr    string // host:port, or the path of a socket
	Restart func() // kills it, and starts it again
	Pause   func()
	Resume  func()
	Forget  func() // deletes all its data; nil unless it is a Redis
}

// All has the stores that know locks and that processes share, in the order of reports. [Records] has the others.
var All = []Deployment{
	onRedis("goredis", 1), onRedis("redigo", 1), onRedis("rueidis", 1), onRedis("valkey", 1),
	onRedis("goredis", 3), onRedis("redigo", 3), onRedis("rueidis", 3), onRedis("valkey", 3),
	{Name: "etcd, 3 members", Start: startEtcd},
	{Name: "PostgreSQL", Start: startPostgres},
	{Name: "NATS", Start: startNATS},
}

// Guarded is a Redlock of five whose nodes have a restart guard, so that they may forget.
func Guarded(longest time.Duration) Deployment {
	d := onRedis("rueidis", 5)
	start := d.Start
	d.Name = "Redlock of 5, restart guard"
	d.Start = func(t testing.TB) *Store {
		st := start(t)
		url := st.url
		st.url = func(addrs string) string { return url(addrs) + "?guard=" + longest.String() }
		return st
	}
	return d
}

// Connect returns a URL of the store for one process, and its ways to the servers. No client learns of other ways: that
// of etcd does not ask for the list of members, and a NATS server tells addresses only if it is in a cluster. A process
// that had another way would go on when it is cut off.
func (s *Store) Connect(t testing.TB) (url string, relays []*testserver.Relay) {
	var hosts []string
	for _, server := range s.Servers {
		addr := server.addr
		if s.Mishaps != nil {
			addr = s.Mishaps.relay(t, addr)
		}
		r := testserver.NewRelay(t, addr, func() (there, back testserver.Side) {
			return testserver.Side{Read: testserver.Chunks()}, testserver.Side{Read: testserver.Chunks()}
		})
		relays, hosts = append(relays, r), append(hosts, r.Addr())
	}
	return s.url(strings.Join(hosts, ",")), relays
}

// URL returns the URL of the store for clients that reach the servers without a relay.
func (s *Store) URL() string {
	var addrs []string
	for _, server := range s.Servers {
		addrs = append(addrs, server.addr)
	}
	return s.url(strings.Join(addrs, ","))
}

// request is how a request begins over HTTP. Clients may send the rest of it separately.
var request = regexp.MustCompile(`^(GET|HEAD|PUT|POST|DELETE) `)

// Counted returns a URL of the store, and a function that says how many requests went that way. If they are not of
// HTTP, what a client sends at once is one request.
func (s *Store) Counted(t testing.TB) (url string, requests func() float64) {
	var addrs []string
	for _, server := range s.Servers {
		addrs = append(addrs, server.addr)
	}
	hosts, requests := Counting(t, func(piece []byte) bool { return s.Mishaps == nil || request.Match(piece) }, addrs...)
	return s.url(hosts), requests
}

// Counting starts a relay to each of some servers, and returns their addresses and how many pieces, of those that
// counts says count, clients have sent to them.
func Counting(t testing.TB, counts func(piece []byte) bool, servers ...string) (addrs string, n func() float64) {
	var passed atomic.Int64
	count := func(piece []byte) testserver.Action {
		if counts(piece) {
			passed.Add(1)
		}
		return testserver.Pass
	}
	for i, server := range servers {
		servers[i] = testserver.NewRelay(t, server, func() (there, back testserver.Side) {
			return testserver.Side{Read: testserver.Chunks(), Decide: count}, testserver.Side{Read: testserver.Chunks()}
		}).Addr()
	}
	return strings.Join(servers, ","), func() float64 { return float64(passed.Load()) }
}

// onRedis is a single Redis, or a Redlock of several.
func onRedis(driver string, nodes int) Deployment {
	d := Deployment{Name: "single, " + driver}
	scheme := "redis+"
	if nodes > 1 {
		d.Name, scheme = fmt.Sprintf("Redlock of %d, %s", nodes, driver), "redlock+"
	}
	d.Start = func(t testing.TB) *Store {
		st := &Store{url: func(addrs string) string { return scheme + driver + "://" + addrs }}
		for range nodes {
			s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			st.Servers = append(st.Servers, Server{
				s.Addr(), s.Restart, s.Pause, s.Resume, func() { _, _ = s.Do("FLUSHALL") },
			})
		}
		return st
	}
	return d
}

func startEtcd(t testing.TB) *Store {
	st := &Store{url: func(addrs string) string { return "etcd://" + addrs }}
	t.Setenv(etcdtest.NoFsync, "false")
	members := etcdtest.StartCluster(t, 3)
	for _, m := range members {
		st.Servers = append(st.Servers, Server{m.Addr(), m.Restart, m.Pause, m.Resume, nil})
	}
	st.Leader = func() Server {
		leads := func(m *etcdtest.Member) bool { return m.Metric("etcd_server_is_leader") > 0 }
		return st.Servers[max(0, slices.IndexFunc(members, leads))] // or any, during an election
	}
	return st
}

// startPostgres starts a server that has the tables.
func startPostgres(t testing.TB) *Store {
	s := pgtest.Start(t, "fsync=on")
	db, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err == nil {
		_, err = postgreslock.Migrate(t.Context(), db)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = db.Close(t.Context())
	return &Store{
		Servers: []Server{{s.Socket(), s.Restart, s.Pause, s.Resume, nil}},
		url:     func(addrs string) string { return "postgres://postgres@" + addrs + "/postgres?sslmode=disable" },
	}
}

// startNATS starts a server with a port that is known, because the address that natstest knows is that of a relay.
func startNATS(t testing.TB) *Store {
	addr := testserver.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	s := natstest.Start(t, "-p", port)
	return &Store{
		Servers: []Server{{addr, s.Restart, s.Pause, s.Resume, nil}},
		url:     func(addrs string) string { return "nats://" + addrs },
	}
}
