package elections

import (
	"fmt"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/backends/postgres"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/serverproc"
)

// deployment is a kind of store.
type deployment struct {
	name  string
	brief bool                    // it is tried in each test
	start func(*testing.T) *store // starts its servers; nil: in memory
	early []kind                  // what frees a lock at the store at once, while the news is on its way to the holder
}

// store is the servers of a deployment.
type store struct {
	servers []server
	url     func(addrs string) string // at which a client opens the store through other addresses of the servers
}

// server keeps its data when it is killed, because a lock that is forgotten has two holders: that is what the restart
// guard is for, and other trials.
type server struct {
	addr    string // host:port, or the path of a socket
	restart func() // kills it, and starts it again
}

// deployments are in the order of the report.
var deployments = []deployment{
	{name: "memory", brief: true},
	onRedis("goredis", 1), onRedis("redigo", 1), onRedis("rueidis", 1), onRedis("valkey", 1),
	onRedis("goredis", 3), onRedis("redigo", 3), onRedis("rueidis", 3), onRedis("valkey", 3),
	{name: "etcd, 3 members", start: startEtcd},
	{name: "PostgreSQL", start: func(t *testing.T) *store { return startPostgres(t, "") }},
	{
		name:  "PostgreSQL, advisory",
		start: func(t *testing.T) *store { return startPostgres(t, "&advisory=true") },
		early: []kind{cuts, outages},
	},
	{name: "NATS", start: startNATS},
}

// onRedis is a single Redis, or a Redlock of several.
func onRedis(driver string, nodes int) deployment {
	d := deployment{name: "single, " + driver, brief: nodes == 1 && driver == "goredis"}
	scheme := "redis+"
	if nodes > 1 {
		d.name, scheme = fmt.Sprintf("Redlock of %d, %s", nodes, driver), "redlock+"
	}
	d.start = func(t *testing.T) *store {
		st := &store{url: func(addrs string) string { return scheme + driver + "://" + addrs }}
		for range nodes {
			s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			st.servers = append(st.servers, server{s.Addr(), s.Restart})
		}
		return st
	}
	return d
}

func startEtcd(t *testing.T) *store {
	st := &store{url: func(addrs string) string { return "etcd://" + addrs }}
	t.Setenv(etcdtest.NoFsync, "false")
	for _, m := range etcdtest.StartCluster(t, 3) {
		st.servers = append(st.servers, server{m.Addr(), m.Restart})
	}
	return st
}

// startPostgres starts a server that has the tables. params are for the URL.
func startPostgres(t *testing.T, params string) *store {
	s := pgtest.Start(t, "fsync=on")
	db, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err == nil {
		_, err = postgres.Migrate(t.Context(), db)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = db.Close(t.Context())
	return &store{
		servers: []server{{s.Socket(), s.Restart}},
		url: func(addrs string) string {
			return "postgres://postgres@" + addrs + "/postgres?sslmode=disable" + params
		},
	}
}

// startNATS starts a server with a port that is known, because the address that natstest knows is that of a relay.
func startNATS(t *testing.T) *store {
	addr := serverproc.Free()
	_, port, _ := net.SplitHostPort(addr)
	s := natstest.Start(t, "-p", port)
	return &store{
		servers: []server{{addr, s.Restart}},
		url:     func(addrs string) string { return "nats://" + addrs },
	}
}
