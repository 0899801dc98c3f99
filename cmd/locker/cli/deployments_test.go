//go:build unix

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/steady"
)

// TestDeployments does all that locks and the command can do behind real sentinels and on a real cluster, with each
// driver that reaches them, as the user of docs/redis.md, over TLS with client certificates and without. All passwords
// are replaced meanwhile, and a replica takes over. The servers must refuse nothing.
func TestDeployments(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(*testing.T, *deployed){"sentinel": startManaged, "cluster": startCluster} {
		for _, scheme := range short.Part(t, 1, []string{"redis", "valkeys"}) {
			t.Run(kind+"/"+scheme, func(t *testing.T) {
				t.Parallel()
				d := &deployed{secured: newSecured(t, ""), scheme: scheme + "+" + kind}
				start(t, d)
				var users []*user
				for _, driver := range short.Part(t, 1, drivers.Reaching(d.kind)) {
					users = append(users, d.use(t, driver))
				}
				d.rotate(t)
				for _, u := range users {
					u.goesOn(t)
				}
				d.failOver(t)
				for _, u := range users {
					u.goesOn(t)
					u.ends(t)
				}
				for _, s := range slices.Concat(d.servers, d.sentinels) {
					assert.Empty(t, s.Cmd(t, "ACL", "LOG"), "refused")
				}
			})
		}
	}
}

// deployed is a deployment that a URL leads to. Only its user "locker" can do without the password of the operator.
type deployed struct {
	*secured
	scheme    string
	kind      drivers.Topology
	servers   []*redistest.Server // those that keep locks, or may do so later
	sentinels []*redistest.Server
	at        string // what the URL has behind the user
	failOver  func(t *testing.T)
}

const operator = "operator"

// encrypted reports whether the servers speak TLS.
func (d *deployed) encrypted() bool {
	return strings.HasPrefix(d.scheme, "valkeys")
}

// startManaged starts a master with a replica, and their sentinels.
func startManaged(t *testing.T, d *deployed) {
	t.Helper()
	args := []string{"--requirepass", operator, "--masterauth", operator, "--repl-diskless-sync-delay", "0"}
	d.kind = drivers.SentinelMaster
	var master *redistest.Server
	if d.encrypted() {
		master = d.Start(t, append(args, "--tls-auth-clients", "yes", "--tls-replication", "yes")...)
	} else {
		master = redistest.Start(t, args...)
	}
	replica := redistest.StartReplica(t, master)
	d.servers = []*redistest.Server{master, replica}
	d.sentinels = redistest.StartSentinels(t, 3, time.Second, master, replica)
	var addrs []string
	for _, s := range d.sentinels {
		s.User(t, "watcher", "on", ">password", "+sentinel", "+subscribe", "+ping")
		addrs = append(addrs, s.Addr())
	}
	for _, s := range d.servers {
		s.DocumentedUser(t)
	}
	require.NoError(t, os.WriteFile(d.file("sentinel_password_file"), []byte("password\n"), 0o600))
	d.at = strings.Join(addrs, ",") + "/" + redistest.SentinelMaster +
		"?sentinel_username=watcher&sentinel_password_file=" + d.file("sentinel_password_file") + "&"
	d.failOver = func(t *testing.T) {
		eventually(t, "the replica has the locks", func() bool {
			return slices.Equal(master.Keys(t, "lock:*"), replica.Keys(t, "lock:*"))
		})
		eventually(t, "a replica that is promoted", func() bool {
			_, _ = d.sentinels[0].Do("SENTINEL", "FAILOVER", redistest.SentinelMaster)
			return replica.IsMaster()
		})
		eventually(t, "no client has a connection to the former master", func() bool {
			clients, err := master.Do("CLIENT", "LIST")
			return err == nil && !strings.Contains(fmt.Sprint(clients), "user=locker")
		})
	}
}

// startCluster starts a cluster of masters with a replica each.
func startCluster(t *testing.T, d *deployed) {
	t.Helper()
	args := []string{"--requirepass", operator, "--masterauth", operator}
	d.kind = drivers.RedisCluster
	var c *redistest.Cluster
	if d.encrypted() {
		c = d.StartCluster(t, 2, true, append(args, "--tls-auth-clients", "yes")...)
	} else {
		c = redistest.StartCluster(t, 2, true, args...)
	}
	d.servers = c.Servers()
	for _, s := range d.servers {
		s.DocumentedUser(t, "+spublish", "+ssubscribe", "+sunsubscribe", "+cluster", "+command")
		s.Cmd(t, "ACL", "SETUSER", "locker", "-publish", "-subscribe", "-unsubscribe")
	}
	d.at = strings.Join(c.Addrs()[:2], ",") + "?"
	d.failOver = func(t *testing.T) {
		for _, r := range c.Replicas {
			c.Failover(t, r)
		}
	}
}

func (d *deployed) url(driver string) string {
	url := d.scheme + "+" + driver + "://locker@" + d.at
	if d.encrypted() {
		return url + d.query
	}
	return url + "password_file=" + d.file("password_file")
}

// rotate gives the users of the servers and the sentinels a second password, writes it to the files, and then ends the
// first one and all connections.
func (d *deployed) rotate(t *testing.T) {
	t.Helper()
	all := slices.Concat(d.servers, d.sentinels)
	name := func(s *redistest.Server) string {
		if slices.Contains(d.sentinels, s) {
			return "watcher"
		}
		return "locker"
	}
	for _, s := range all {
		s.Cmd(t, "ACL", "SETUSER", name(s), ">another")
	}
	for _, file := range []string{"password_file", "sentinel_password_file"} {
		require.NoError(t, os.WriteFile(d.file(file), []byte("another\n"), 0o600))
	}
	for _, s := range all {
		s.Cmd(t, "ACL", "SETUSER", name(s), "<password")
		s.Cmd(t, "CLIENT", "KILL", "USER", name(s))
	}
}

// user is what uses a deployment with one driver.
type user struct {
	url    string
	client *config.Opened
	lease  locker.Lease
	fence  uint64   // of the last lock that was released
	run    *process // has a lock, and ends when it can read from the file "go"
	key    string   // of that lock
}

// use does all that locks and the command can do, and begins what goes on while the deployment changes.
func (d *deployed) use(t *testing.T, driver string) *user {
	t.Helper()
	u := &user{url: d.url(driver), key: "run-" + driver}
	useLocks(t, u.url, "k")
	useCommand(t, u.url)

	c, err := config.Parse(u.url)
	require.NoError(t, err)
	text, err := yaml.Marshal(c)
	require.NoError(t, err)
	file := d.file(driver + ".yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	run(t, "", "run", "--config", file, "-k", "by-file", "--", "true").exits(t, 0)

	u.client, err = config.Open(t.Context(), u.url)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, u.client.Close()) })
	u.lease, err = u.client.Lock(t.Context(), "held-"+driver, locker.TTL(time.Minute))
	require.NoError(t, err)
	u.run = run(t, "", "run", "--url", u.url, "-k", u.key, "--ttl", "1m", "--", "sh", "-c", "echo $$ >up; read x <go")
	require.NoError(t, syscall.Mkfifo(u.run.file("go"), 0o600))
	u.run.pid(t, "up")
	return u
}

// goesOn checks that the user has what it had, and that it can do all as before.
func (u *user) goesOn(t *testing.T) {
	t.Helper()
	// The first call for each server may be sent on a connection that the server has closed.
	again := func(what string, call func() error) {
		t.Helper()
		eventually(t, what, func() bool {
			err := call()
			if err != nil {
				require.ErrorIs(t, err, locker.ErrUnavailable)
			}
			return err == nil
		})
	}
	again("the lease can be extended", func() error { return u.lease.Extend(t.Context()) })
	again("the lease is proved", func() error { return locker.Verify(t.Context(), u.lease) })
	var next locker.Lease
	again("a lock", func() (err error) {
		next, err = u.client.Lock(t.Context(), "k")
		return err
	})
	assert.Greater(t, next.Fence(), u.fence)
	u.fence = next.Fence()
	steady.Unlock(t, next)
	useLocks(t, u.url, "k")
	useCommand(t, u.url)
	code, out, stderr := call(nil, "inspect", "--url", u.url, u.key, "--json")
	assert.Zero(t, code, stderr)
	assert.Contains(t, out, `"held"`)
}

// ends releases what the user has.
func (u *user) ends(t *testing.T) {
	t.Helper()
	steady.Unlock(t, u.lease)
	require.NoError(t, os.WriteFile(u.run.file("go"), []byte("on\n"), 0o600))
	u.run.exits(t, 0)
	// A release whose connection was closed meanwhile is sent again.
	eventually(t, "the lock of the command is free", func() bool {
		code, out, _ := call(nil, "inspect", "--url", u.url, u.key, "--json")
		return code == 0 && strings.Contains(out, `"free"`)
	})
}

// TestTheNextStepFitsTheDeployment checks the advice after an error of sentinels, of a cluster, and of servers that are
// not what the URL says.
func TestTheNextStepFitsTheDeployment(t *testing.T) {
	t.Parallel()
	watched := func(master *redistest.Server) string {
		return redistest.StartSentinels(t, 1, time.Minute, master)[0].Addr()
	}
	a, one := redistest.NewAuthority(t), redistest.Start(t)
	s, locked := watched(one), watched(redistest.Start(t, "--requirepass", "right"))
	secure := watched(a.Start(t, "--tls-replication", "yes"))
	c := redistest.StartCluster(t, 2, false).Addrs()[0]
	secureCluster := a.StartCluster(t, 1, false).Addrs()[0]
	wrong := filepath.Join(t.TempDir(), "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("wrong\n"), 0o600))
	const closed = "127.0.0.1:1"
	for name, tt := range map[string]struct{ url, next string }{
		"another name of the master": {"redis+sentinel://" + s + "/other",
			"SENTINEL MASTERS on a sentinel lists"},
		"a server as a sentinel": {"redis+sentinel://" + one.Addr() + "/master",
			"give the addresses of the sentinels"},
		"a sentinel as a server":       {"redis://" + s, "write redis+sentinel://host:26379/mymaster"},
		"no sentinel":                  {"redis+sentinel://" + closed + "/master", "start the sentinels"},
		"no password of the sentinels": {"redis+sentinel://" + locked + "/master", "sentinel_password_file"},
		"wrong one": {"redis+sentinel://" + locked + "/master?sentinel_password_file=" + wrong,
			"sentinel_password_file"},
		"wrong password of the master": {"redis+sentinel://u:p@" + s + "/master",
			`check the password of user "u"`},
		"TLS to sentinels without": {"rediss+sentinel://" + s + "/master?timeout=300ms",
			"write redis+sentinel:// instead"},
		"plain to sentinels with TLS": {"redis+sentinel://" + secure + "/master",
			"write rediss+sentinel:// instead"},
		"no CA of the sentinels":        {"rediss+sentinel://" + secure + "/master", "as tls_ca_file"},
		"a server as a cluster":         {"redis+cluster://" + one.Addr(), "write redis:// for one server"},
		"a node of a cluster as server": {"redis://" + c, "write redis+cluster://"},
		"no node":                       {"redis+cluster://" + closed, "start redis-server, or correct host and port"},
		"wrong password of the cluster": {"redis+cluster://u:p@" + c, `check the password of user "u"`},
		"TLS to a cluster without": {"rediss+cluster://" + c + "?timeout=300ms",
			"write redis+cluster:// instead"},
		"plain to a cluster with TLS": {"redis+cluster://" + secureCluster, "write rediss+cluster:// instead"},
		"no CA of the cluster":        {"rediss+cluster://" + secureCluster, "as tls_ca_file"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, driver := range short.Part(t, 1, drivers.Reaching(drivers.RedisCluster)) {
				scheme, rest, _ := strings.Cut(tt.url, "://")
				// One of the keys is not on the first node of the cluster.
				code, _, stderr := callAgain([]string{"LOCKER_URL=" + scheme + "+" + driver + "://" + rest},
					"run", "-k", "a", "-k", "b", "-k", "c", "-k", "d", "--wait", "0", "--", "true")
				assert.Equal(t, exit.Unavailable, code, driver)
				assert.Contains(t, stderr, tt.next, driver)
			}
		})
	}
}
