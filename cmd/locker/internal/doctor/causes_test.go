package doctor_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

func empty() *fixture {
	return &fixture{Deployment: doctor.Deployment{Prefix: "lock:", TTL: usual, Timeout: 5 * time.Second}}
}

// start starts one server, to be examined with driver.
func start(t *testing.T, driver string, c drivers.Config, args ...string) *fixture {
	t.Helper()
	h := empty()
	s := redistest.Start(t, append(append([]string(nil), durable...), args...)...)
	h.servers = append(h.servers, s)
	c.Addr = s.Addr()
	h.add(t, driver, c)
	return h
}

// forEachDriver runs f with each driver, concurrently. With -short it runs f with one of them.
func forEachDriver(t *testing.T, f func(t *testing.T, driver string)) {
	t.Helper()
	for _, driver := range short.Part(t, 1, drivers.Names()) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, driver)
		})
	}
}

func TestEachFaultOfTheConnectionIsCalledByItsName(t *testing.T) {
	t.Parallel()
	none := drivers.Config{}
	insecure := &tls.Config{InsecureSkipVerify: true}
	for name, test := range map[string]struct {
		start func(t *testing.T, driver string) *fixture
		want  string
		fix   string
	}{
		"plain text to a TLS port": {func(t *testing.T, driver string) *fixture {
			return startTLS(t, driver, func(*redistest.Server, *tls.Config) *tls.Config { return nil })
		}, "it wants TLS", "write rediss://"},
		"TLS to a port without it": {func(t *testing.T, driver string) *fixture {
			h := start(t, driver, drivers.Config{TLS: insecure})
			h.Timeout = time.Second
			return h
		}, "it does not speak TLS on this port", "write redis://"},
		"no client certificate": {func(t *testing.T, driver string) *fixture {
			return startTLS(t, driver, func(_ *redistest.Server, c *tls.Config) *tls.Config { return c },
				"--tls-auth-clients", "yes")
		}, "it wants a client certificate", "tls_cert_file and tls_key_file"},
		"an authority that is not trusted": {func(t *testing.T, driver string) *fixture {
			return startTLS(t, driver, func(*redistest.Server, *tls.Config) *tls.Config {
				return &tls.Config{ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
			})
		}, "an authority that is not trusted here", "tls_ca_file"},
		"another name in the certificate": {func(t *testing.T, driver string) *fixture {
			return startTLS(t, driver,
				func(_ *redistest.Server, c *tls.Config) *tls.Config { c.ServerName = "redis.internal"; return c })
		}, "made out to another name", "tls_server_name"},
		"protected mode": {func(t *testing.T, driver string) *fixture {
			h := empty()
			h.add(t, driver, drivers.Config{Addr: redistest.Refuse(t, redistest.Protected)})
			return h
		}, "it is in protected mode", "set a password on the server"},
		"maxclients": {func(t *testing.T, driver string) *fixture {
			h := start(t, driver, none, "--maxclients", "1")
			// This connection is refused until the server has noticed that the connection of Start has ended.
			for answer, end := "", time.Now().Add(30*time.Second); answer != "+PONG"; {
				hog, err := net.Dial("unix", h.servers[0].Socket())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = hog.Close() })
				_, _ = fmt.Fprint(hog, "PING\r\n")
				buf := make([]byte, len("+PONG"))
				_, _ = io.ReadFull(hog, buf)
				if answer = string(buf); time.Now().After(end) {
					t.Fatalf("there is no room: %q", answer)
				}
			}
			return h
		}, "it takes no more connections", "raise maxclients"},
		"a server of another kind": {func(t *testing.T, driver string) *fixture {
			h := empty()
			h.add(t, driver, drivers.Config{Addr: redistest.Refuse(t, "220 mail.example.com ESMTP\r\n")})
			return h
		}, "this is not a Redis server", "correct host and port"},
		"nobody listens": {func(t *testing.T, driver string) *fixture {
			h := start(t, driver, none)
			h.servers[0].Kill()
			return h
		}, "nobody listens on this port", "start redis-server"},
		"no such host": {func(t *testing.T, driver string) *fixture {
			h := empty()
			h.add(t, driver, drivers.Config{Addr: "no-such-host.invalid:6379"})
			return h
		}, "the host name cannot be resolved", "correct the host name"},
		"no such socket": {func(t *testing.T, driver string) *fixture {
			h := empty()
			h.add(t, driver, drivers.Config{Network: "unix", Addr: filepath.Join(t.TempDir(), "none")})
			return h
		}, "there is no such socket", "correct the path"},
		"a database that is not there": {func(t *testing.T, driver string) *fixture {
			return start(t, driver, drivers.Config{DB: 99})
		}, "it has no database of that number", "use a lower number"},
		"no password": {func(t *testing.T, driver string) *fixture {
			return start(t, driver, none, "--requirepass", "right")
		}, "it wants a password", "LOCKER_REDIS_PASSWORD"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, driver string) {
				h := test.start(t, driver)
				h.servers = nil // not all of these servers could be asked for their keys
				r := h.want(t, "fail 1 reachable: "+test.want)
				if fix := r.Findings[0].Fix; !strings.Contains(fix, test.fix) {
					t.Errorf("the fix is %s", fix)
				}
			})
		})
	}
}

func startTLS(t *testing.T, driver string, client func(*redistest.Server, *tls.Config) *tls.Config,
	args ...string) *fixture {
	t.Helper()
	h := empty()
	s, c := redistest.StartTLS(t, args...)
	c.ServerName = "127.0.0.1"
	h.add(t, driver, drivers.Config{Addr: s.Addr(), TLS: client(s, c)})
	return h
}

func TestEachRefusalIsCalledByItsName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		do   func(t *testing.T, s *redistest.Server)
		want []string
		fix  string // of the last finding
	}{
		"renamed commands": {[]string{"--rename-command", "EVALSHA", "", "--rename-command", "ZADD", "add"}, nil,
			[]string{"fail 1 rights: renamed, disabled or missing: ZADD and EVALSHA"},
			"remove the rename-command for ZADD and EVALSHA"},
		"INFO renamed": {[]string{"--rename-command", "INFO", ""}, nil,
			[]string{"warn 1 info: INFO is refused: ERR unknown command"}, "remove the rename-command for INFO"},
		"PUBLISH renamed": {[]string{"--rename-command", "PUBLISH", ""}, nil,
			[]string{"warn 1 messages: poll every 50 to 100 ms (ERR unknown command"},
			"remove the rename-command for PUBLISH"},
		"SUBSCRIBE renamed": {[]string{"--rename-command", "SUBSCRIBE", ""}, nil,
			[]string{"warn 1 messages: poll every 50 to 100 ms (ERR unknown command"}, "remove the rename-command for"},
		"CONFIG renamed": {[]string{"--rename-command", "CONFIG", ""}, nil,
			[]string{"warn 1 settings: CONFIG GET is disabled: appendfsync", "warn 1 uptime: it may have forgotten locks"}, ""},
		"no memory": {[]string{"--maxmemory", "1"}, nil,
			[]string{"warn 1 memory: of 1 bytes are used", "fail 1 rights: it takes no writes: its memory is full (OOM"},
			"raise maxmemory"},
		"no replicas": {[]string{"--min-replicas-to-write", "3"}, nil,
			[]string{"fail 1 rights: it takes no writes: fewer replicas are connected than its min-replicas-to-write " +
				"(NOREPLICAS"}, "connect its replicas"},
		"MISCONF": {[]string{"--save", "3600", "1000"}, cannotSave,
			[]string{"fail 1 rights: it takes no writes: it cannot save its data (MISCONF"}, "make room on its disk"},
		"a cluster that is down": {[]string{"--cluster-enabled", "yes"}, nil,
			[]string{"warn 1 role: a node of a Redis Cluster",
				"fail 1 rights: it is a node of a Redis Cluster that is down (CLUSTERDOWN"}, "CLUSTER INFO"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachDriver(t, func(t *testing.T, driver string) {
				h := start(t, driver, drivers.Config{}, test.args...)
				if test.do != nil {
					test.do(t, h.servers[0])
				}
				r := h.want(t, test.want...)
				last := ""
				for _, f := range r.Findings {
					if f.Level != doctor.OK {
						last = f.Fix
					}
				}
				if !strings.Contains(last, test.fix) {
					t.Errorf("the fix is %s", last)
				}
			})
		})
	}
}

// cannotSave makes a server fail to save its data.
func cannotSave(t *testing.T, s *redistest.Server) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(s.Dir(), "dump.rdb"), 0o700); err != nil { // a directory in the place of the file
		t.Fatal(err)
	}
	s.Cmd(t, "BGSAVE")
	for end := time.Now().Add(30 * time.Second); !strings.Contains(fmt.Sprint(s.Cmd(t, "INFO", "persistence")),
		"rdb_last_bgsave_status:err"); {
		if time.Now().After(end) {
			t.Fatal("it could save")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// recorded answers one command with a recorded reply of another server.
type recorded struct {
	lent
	drivers.Subscriber
	command string
	reply   drivers.Reply
}

type lent struct{ drivers.Driver }

func (r recorded) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	replies, err := r.lent.Do(ctx, cmds...)
	for i := range replies {
		if cmds[i][0] == r.command {
			replies[i] = r.reply
		}
	}
	return replies, err
}

// answers makes the first node answer command with reply.
func (h *fixture) answers(command string, reply drivers.Reply) {
	d := h.Nodes[0].Driver
	h.Nodes[0].Driver = recorded{lent{d}, d.(drivers.Subscriber), command, reply}
}

func TestLocksDoWithoutPing(t *testing.T) {
	t.Parallel()
	h := startServers(t, 1, "redigo")
	h.answers("PING", drivers.ServerError("ERR unknown command 'PING', with args beginning with: "))
	h.want(t)
}

func TestValkeyAndRedictAreSeenThrough(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]string{"valkey-8.1": "Valkey 8.1.1", "redict-7.3": "Redict 7.3.6"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := func(h *fixture, kind string) *fixture {
				text, err := os.ReadFile(filepath.Join("testdata", "info-"+name+"-"+kind+".txt"))
				if err != nil {
					t.Fatal(err)
				}
				h.answers("INFO", string(text))
				return h
			}
			r := with(startServers(t, 1, "redigo"), "standalone").want(t)
			if !strings.Contains(fmt.Sprint(r), "version ok "+version) {
				t.Errorf("the version is not among %v", r)
			}
			with(startServers(t, 3, "goredis"), "cluster").want(t, "fail 1 role: a node of a Redis Cluster",
				"warn 1 persistence: the append-only file is off")
			with(startServers(t, 1, "rueidis"), "cluster").want(t, "warn 1 role: a node of a Redis Cluster",
				"warn 1 persistence: the append-only file is off")
			with(startServers(t, 1, "goredis"), "sentinel").want(t, "fail 1 role: this is a sentinel")
		})
	}
}
