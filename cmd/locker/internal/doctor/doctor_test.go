package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	_ "github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestHealthyDeployments(t *testing.T) {
	t.Parallel()
	for driver, n := range map[string]int{"goredis": 5, "redigo": 1, "rueidis": 3, "valkey": 1} {
		t.Run(fmt.Sprintf("%s, %d", driver, n), func(t *testing.T) {
			t.Parallel()
			h := startServers(t, n, driver)
			r := h.want(t)
			checks := map[string]int{}
			for _, f := range r.Findings {
				checks[f.Check]++
			}
			for _, check := range []string{"reachable", "latency", "version", "role", "persistence", "eviction",
				"uptime", "rights", "scripts", "messages"} {
				if checks[check] != n {
					t.Errorf("%d nodes were looked at for %s", checks[check], check)
				}
			}
			for _, check := range []string{"nodes", "identity", "independence", "clocks"} {
				if (checks[check] == 1) != (n > 1) {
					t.Errorf("all were looked at %d times for %s", checks[check], check)
				}
			}
		})
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	h := startServers(t, 3, "redigo")
	h.Budget = 10 * time.Microsecond
	h.want(t, "fail 1 latency: the bound is 0s", "fail 2 latency: p99", "fail 3 latency: of the budget")
}

func TestOneServerGivenTwice(t *testing.T) {
	t.Parallel()
	h := startServers(t, 5, "goredis")
	_, port, _ := strings.Cut(h.servers[0].Addr(), ":")
	h.replace(t, 4, "goredis", drivers.Config{Addr: "localhost:" + port})
	h.want(t, "fail all identity: "+h.servers[0].Addr()+" and localhost:"+port+" are the same server",
		"fail all independence: what is written to localhost:"+port+" shows on "+h.servers[0].Addr(),
		"fail all independence: what is written to "+h.servers[0].Addr()+" shows on localhost:"+port)
}

// Without INFO, which has the run_id, a key that is written to one address shows on the other one.
func TestOneServerGivenTwiceThatRefusesInfo(t *testing.T) {
	t.Parallel()
	h := startServers(t, 3, "goredis")
	_, port, _ := strings.Cut(h.servers[0].Addr(), ":")
	h.servers[0].User(t, "default", "-info")
	h.replace(t, 2, "goredis", drivers.Config{Addr: "localhost:" + port})
	h.want(t, "warn 1 info: INFO is refused", "warn 3 info: INFO is refused",
		"warn all identity: 1 of 3 nodes have shown their run_id, so one server may be there twice",
		"fail all independence: what is written to localhost:"+port+" shows on "+h.servers[0].Addr(),
		"fail all independence: what is written to "+h.servers[0].Addr()+" shows on localhost:"+port)
}

// replicate makes a server a replica of master, and returns when it receives what is written there. That begins up to a
// second after it has the data, when the replica has confirmed them.
func replicate(t *testing.T, master, replica *redistest.Server) {
	t.Helper()
	replica.Follow(t, master)
	if n := master.Cmd(t, "WAIT", 1, 20000); n != int64(1) {
		t.Fatalf("%v replicas have confirmed", n)
	}
}

func TestReplicaAmongMasters(t *testing.T) {
	t.Parallel()
	h := startServers(t, 3, "rueidis")
	replicate(t, h.servers[0], h.servers[1])
	h.want(t, "fail 2 role: it is a replica of "+h.servers[0].Addr(), "fail 2 rights: it takes no writes",
		"warn 1 replicas: it is a node of a Redlock and has 1 replicas",
		"fail all independence: what is written to "+h.servers[0].Addr()+" shows on "+h.servers[1].Addr())
}

// The number of replicas that have to confirm a lock is compared with those that are connected.
func TestReplicasThatAreWaitedFor(t *testing.T) {
	t.Parallel()
	h := startServers(t, 1, "redigo")
	h.Replicas = 2
	replicate(t, h.servers[0], redistest.StartReplica(t, h.servers[0]))
	h.servers[0].Cmd(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	h.want(t, "fail 1 replicas: replicas=2 is configured, and 1 can confirm a lock: no lock can be taken")
	h.Replicas = 1
	h.want(t)
}

func TestEviction(t *testing.T) {
	t.Parallel()
	h := startServers(t, 3, "redigo")
	h.servers[0].Cmd(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	h.servers[1].Cmd(t, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	h.servers[1].Cmd(t, "CONFIG", "SET", "maxmemory", "100mb")
	h.want(t, "warn 1 eviction: allkeys-lru", "fail 2 eviction: volatile-ttl")
}

func TestPersistence(t *testing.T) {
	t.Parallel()
	h := startServers(t, 3, "goredis")
	h.servers[0].Cmd(t, "CONFIG", "SET", "appendonly", "no")
	h.servers[1].Cmd(t, "CONFIG", "SET", "appendfsync", "everysec")
	h.Budget = 2 * time.Second
	h.want(t, "warn 1 persistence: the append-only file is off", "warn 2 persistence: appendfsync is everysec",
		"warn 1 uptime: it may have forgotten locks", "warn 2 uptime: it may have forgotten locks")
}

// A node that hangs is reported by its name, and does not delay the examination of the others.
func TestHungNode(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers.Names() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			h := startServers(t, 3, driver)
			h.Timeout = time.Second
			h.servers[2].Pause()
			t.Cleanup(h.servers[2].Resume)
			keep := h.servers
			h.servers = h.servers[:2]
			start := time.Now()
			h.want(t, "fail 3 reachable: no answer within 1s", "warn all nodes: 2 of 3 can be reached: 0 more may fail")
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			h.servers = keep
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	h := startServers(t, 3, "goredis")
	h.servers[0].Kill()
	h.servers[1].Kill()
	h.want(t, "fail 1 reachable: no connection", "fail 2 reachable: no connection",
		"fail all nodes: 1 of 3 can be reached: no majority")
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers.Names() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			h := startServers(t, 3, driver)
			for _, i := range []int{0, 1} {
				h.servers[i].User(t, "locker", "on", ">right", "allkeys", "+@all")
			}
			h.replace(t, 0, driver, drivers.Config{Addr: h.servers[0].Addr(), Username: "locker", Password: "wrong"})
			h.replace(t, 1, driver, drivers.Config{Addr: h.servers[1].Addr(), Username: "locker", Password: "right"})
			r := h.want(t, "fail 1 reachable: it refuses the password", "warn all nodes: 2 of 3")
			if strings.Contains(fmt.Sprint(r), "wrong") {
				t.Error("the password is shown")
			}
		})
	}
}

func TestMissingRights(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, rules, want, fix string }{
		{"a command", "allkeys +@all -zadd -hget", "it lacks +zadd and +hget", "ACL SETUSER locker +zadd +hget"},
		{"keys", "~lock:* +@all", "it lacks ~{lock:* and ~{*}}lock:*", "ACL SETUSER locker ~{lock:* ~{*}}lock:*"},
		{"channels", "allkeys resetchannels +@all", "it lacks &lock:*", "&lock:*"},
		{"scripts", "allkeys +@all -eval -evalsha", "it lacks +eval and +evalsha", "+eval"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := startServers(t, 1, "goredis")
			if test.name == "channels" && !h.servers[0].ChannelRights(t) {
				return
			}
			rules := []any{"on", ">pw"}
			for _, rule := range strings.Fields(test.rules) {
				rules = append(rules, rule)
			}
			h.servers[0].User(t, "locker", rules...)
			h.replace(t, 0, "goredis", drivers.Config{Addr: h.servers[0].Addr(), Username: "locker", Password: "pw"})
			r := h.want(t, "fail 1 rights: "+test.want)
			if fixes := fmt.Sprint(r); !strings.Contains(fixes, test.fix) {
				t.Errorf("the fix is in %s", fixes)
			}
		})
	}
	t.Run("publish, ping and info, with a guard", func(t *testing.T) {
		t.Parallel()
		h := startServers(t, 1, "goredis")
		h.servers[0].User(t, "locker", "on", ">pw", "allkeys", "+@all", "-publish")
		h.replace(t, 0, "goredis", drivers.Config{Addr: h.servers[0].Addr(), Username: "locker", Password: "pw"})
		h.want(t, "warn 1 messages: poll every 50 to 100 ms (NOPERM")
		h.servers[0].Cmd(t, "ACL", "SETUSER", "locker", "+publish", "-ping")
		if r := h.want(t, "warn 1 messages: poll every 50 to 100 ms (NOPERM"); !strings.Contains(fmt.Sprint(r), "+ping") {
			t.Errorf("no word of the missing right: %v", r)
		}
		h.servers[0].Cmd(t, "ACL", "SETUSER", "locker", "+ping", "-info")
		h.Guard = 10 * time.Second
		r := h.want(t, "warn 1 info: INFO is refused", "fail 1 guard: the restart guard needs INFO inside of scripts")
		if !strings.HasSuffix(r.Findings[len(r.Findings)-1].Fix, "+info") {
			t.Errorf("no word of the missing right: %v", r)
		}
	})
	t.Run("info, config and subscribe", func(t *testing.T) {
		t.Parallel()
		h := startServers(t, 1, "redigo")
		h.servers[0].User(t, "locker", "on", ">pw", "allkeys", "+@all", "-info", "-subscribe")
		h.replace(t, 0, "redigo", drivers.Config{Addr: h.servers[0].Addr(), Username: "locker", Password: "pw"})
		h.want(t, "warn 1 info: INFO is refused", "warn 1 messages: waiters are not notified")
		h.servers[0].Cmd(t, "ACL", "SETUSER", "locker", "+info", "+subscribe", "-config")
		h.want(t, "warn 1 settings: CONFIG GET is refused: appendfsync, no-appendfsync-on-rewrite, save",
			"warn 1 uptime: it may have forgotten locks")
	})
}
