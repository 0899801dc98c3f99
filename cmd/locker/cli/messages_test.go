//go:build unix

package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestWrongArgumentsSayWhatToWriteInstead(t *testing.T) {
	env := []string{"LOCKER_URL=memory:"}
	for line, want := range map[string]string{
		"inspect a b":                     `unexpected argument "b": one key at a time; a key with spaces needs quotes`,
		"run --key a --wait 3 -- true":    `--wait: invalid duration "3": use 3s, 0 or forever`,
		"run --key a --wait -3s -- true":  `--wait: invalid duration "-3s": use 30s or 500ms, 0 or forever`,
		"run --key a --wait long -- true": `--wait: invalid duration "long": use 30s or 500ms, 0 or forever`,
		"run --key a --ttl 3 -- true":     `invalid argument "3" for "--ttl" flag: use 3s`,
		"run --key a --grace x -- true":   `invalid argument "x" for "--grace" flag: use 30s or 500ms`,
		"run --key a --tick 1d -- true":   `invalid argument "1d" for "--tick" flag: use 24h`,
		"watch a --interval 0.5":          `invalid argument "0.5" for "--interval" flag: use 0.5s`,
		"inspect k --jsn":                 `unknown flag: --jsn: did you mean --json?`,
		"run --key a --wat 3s -- true":    `unknown flag: --wat: did you mean --wait?: see locker run --help`,
		"doctor --zzzz":                   `unknown flag: --zzzz: see locker doctor --help`,
	} {
		code, _, stderr := call(env, strings.Fields(line)...)
		assert.Equal(t, exit.Usage, code, line)
		assert.Contains(t, stderr, "locker: "+want, line)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	code, _, stderr := call(env, "run", "--key", "a", "no-such-b", "--", "true")
	assert.Equal(t, exit.NotFound, code)
	assert.Contains(t, stderr,
		`"no-such-b": executable file not found in $PATH: it was read as the command: put a key with spaces in quotes`)
	code, _, stderr = call(nil, "run", "--key", "a", "--", "true")
	assert.Equal(t, exit.Config, code)
	assert.Equal(t, "locker: no configuration, and no home directory for locks in files: set LOCKER_URL, for example to "+
		"redis://localhost, or use --url or --config\n", stderr)
	code, _, stderr = call([]string{"LOCKER_REDIS_ADDR=h"}, "run", "--key", "a", "--", "true")
	assert.Equal(t, exit.Config, code)
	assert.Contains(t, stderr, "backend: missing")
	_, help, _ := call(env, "help", "run")
	assert.Contains(t, help, "--ttl duration")
	assert.NotContains(t, help, "(default -")
}

// What config check does not find, it must not be advised for; and config check finds in the addresses and the files of
// all stores what the other commands would find.
func TestMistakesInTheConfigurationOfEveryStore(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for url, want := range map[string]string{
		"etcd://::1":                         "endpoints: not host:port: write an IPv6 address in brackets",
		"etcd://::1:2379":                    "endpoints: not host:port: write an IPv6 address in brackets",
		"etcd://h:x":                         "endpoints: the port is not a number from 1 to 65535",
		"etcd://h1,,h2":                      "endpoints: number 2: address missing",
		"nats://::1:4222":                    "addrs: not host:port: write an IPv6 address in brackets",
		"nats://h:99999":                     "addrs: the port is not a number from 1 to 65535",
		"nats://h1,":                         "addrs: number 2: address missing",
		"nats://u@h?password_file=" + none:   "nats.password_file: file not found: " + none,
		"etcd://u@h?password_file=" + none:   "etcd.password_file: file not found: " + none,
		"etcds://h?tls_ca_file=" + none:      "etcd.tls.ca_file: file not found: " + none,
		"natss://h?tls_ca_file=" + none:      "nats.tls.ca_file: file not found: " + none,
		"postgres://h?password_file=" + none: "postgres.password_file: file not found: " + none,
	} {
		for _, args := range [][]string{{"config", "check"}, {"inspect", "k"}, {"run", "-k", "k", "--", "true"}, {"doctor"}} {
			code, _, stderr := call([]string{"LOCKER_URL=" + url}, args...)
			assert.Equal(t, exit.Config, code, url)
			assert.Contains(t, stderr, want, url)
			assert.NotContains(t, stderr, "config check", url)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		}
	}
}

func TestConfigCheckLooksIntoTheFiles(t *testing.T) {
	dir := t.TempDir()
	none, text := filepath.Join(dir, "none"), filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("hunter2"), 0o600))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	onlyKey := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(onlyKey, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	for url, want := range map[string]string{
		"redis://h?password_file=" + none: "config: redis.password_file: file not " +
			"found: " + none,
		"rediss://h?tls_ca_file=" + text: "config: redis.tls.ca_file: no PEM " +
			"certificate in " + text,
		"rediss://h?tls_ca_file=" + onlyKey: "config: redis.tls.ca_file: no PEM " +
			"certificate in " + onlyKey,
		"redlocks://h,i,j?tls_ca_file=" + text: "config: redlock.tls.ca_file: no PEM " +
			"certificate in " + text,
		"rediss://h?tls_cert_file=" + onlyKey + "&tls_key_file=" + onlyKey: "config: redis.tls.cert_file, " +
			"key_file: " + onlyKey + " and " + onlyKey,
	} {
		code, stdout, stderr := call(nil, "config", "check", "--url", url)
		assert.Equal(t, exit.Config, code, url)
		assert.Empty(t, stdout, url)
		assert.Contains(t, stderr, "locker: "+want, url)
		assert.NotContains(t, stderr, "hunter2")
		assert.NotContains(t, stderr, "must be able to read")
	}
	code, stdout, stderr := call(nil, "config", "check", "--url", "redis://h?password_file="+text)
	assert.Zero(t, code, stderr)
	assert.Equal(t, "ok: redis://h:6379?password_file="+strings.ReplaceAll(text, "/", "%2F")+"\n", stdout)
}

func TestConfigCheckWarnsOfTooFewNodes(t *testing.T) {
	for nodes, want := range map[string]string{
		"a":       "locker: warning: redlock.nodes: one node tolerates no failure: use three or five\n",
		"a,b":     "locker: warning: redlock.nodes: two nodes tolerate no failure: use three or five\n",
		"a,b,c":   "",
		"a,b,c,d": "locker: warning: redlock.nodes: 4 nodes tolerate no more failures than 3: use an odd number\n",
	} {
		code, stdout, stderr := call(nil, "config", "check", "--url", "redlock://"+nodes)
		assert.Zero(t, code)
		assert.Contains(t, stdout, "ok: redlock://")
		assert.Equal(t, want, stderr)
		_, stdout, _ = call(nil, "config", "check", "--json", "--url", "redlock://"+nodes)
		assert.Equal(t, want != "", strings.Contains(stdout, `"warning": "redlock.nodes: `), stdout)
	}
}

// TestTheNextStepFitsTheFault checks that the advice after an error fits that error.
func TestTheNextStepFitsTheFault(t *testing.T) {
	plain := redistest.Start(t)
	secure, _ := redistest.StartTLS(t)
	password := redistest.Start(t, "--requirepass", "right")
	full := redistest.Start(t, "--maxmemory", "1")
	alone := redistest.Start(t, "--min-replicas-to-write", "3")
	renamed := redistest.Start(t, "--rename-command", "EVALSHA", "")
	unsaved := redistest.Start(t, "--save", "3600", "1000")
	require.NoError(t, os.Mkdir(filepath.Join(unsaved.Dir(), "dump.rdb"), 0o700))
	unsaved.Cmd(t, "BGSAVE")
	eventually(t, "it has failed", func() bool {
		return strings.Contains(fmt.Sprint(unsaved.Cmd(t, "INFO", "persistence")), "rdb_last_bgsave_status:err")
	})
	replica := redistest.Start(t)
	host, port, _ := strings.Cut(plain.Addr(), ":")
	replica.Cmd(t, "REPLICAOF", host, port)
	plain.User(t, "limited", "on", ">pw", "allkeys", "+@all", "-evalsha")
	dead := redistest.Start(t)
	dead.Kill()
	hung := redistest.Start(t)
	hung.Pause()
	t.Cleanup(hung.Resume)
	guarded := redistest.Refuse(t, redistest.Protected)
	ca := "tls_ca_file=" + secure.CAFile()
	for name, tt := range map[string]struct{ url, next string }{
		"no server": {"redis://" + dead.Addr(),
			"connection refused: start redis-server, or correct host and port"},
		"no socket": {"unix:///no/such.sock", "start redis-server, or correct the path"},
		"hung": {"redis://" + hung.Addr() + "?timeout=300ms",
			"is the server up, and does the network let it answer? run locker doctor"},
		"wrong password": {"redis://:wrong@" + password.Addr(), `check the password of user "default"`},
		"no password":    {"redis://" + password.Addr(), ": give user name and password"},
		"NOPERM":         {"redis://limited:pw@" + plain.Addr(), "locker doctor names the ACL rules"},
		"OOM":            {"redis://" + full.Addr(), "used memory > 'maxmemory': raise maxmemory"},
		"READONLY":       {"redis://" + replica.Addr(), "read only replica: give the address of its master"},
		"NOREPLICAS":     {"redis://" + alone.Addr(), "connect its replicas"},
		"MISCONF":        {"redis://" + unsaved.Addr(), "make room on its disk"},
		"renamed": {"redis://" + renamed.Addr(),
			"keep locks): remove the rename-command for EVALSHA"},
		"wrong database": {"redis://" + plain.Addr() + "/99", "out of range: use a lower number"},
		"TLS to a plain port": {"rediss://" + plain.Addr() + "?timeout=300ms",
			"it does not speak TLS on this port: write redis://"},
		"plain to a TLS port": {"redis://" + secure.Addr(), "it wants TLS: write rediss://"},
		"no CA":               {"rediss://" + secure.Addr(), "as tls_ca_file"},
		"another name": {"rediss://" + secure.Addr() + "?tls_server_name=redis.internal&" + ca,
			"or as tls_server_name"},
		"protected mode": {"redis://" + guarded, "set a password on the server"},
	} {
		if name == "NOREPLICAS" {
			if _, err := alone.Do("EVAL", "return redis.call('SET', KEYS[1], '')", "1", "x"); err == nil {
				continue // on Redis 6.0, scripts may write without the replicas
			}
		}
		t.Run(name, func(t *testing.T) {
			for _, driver := range drivers.Names() {
				t.Run(driver, func(t *testing.T) {
					t.Parallel()
					scheme, rest, _ := strings.Cut(tt.url, "://")
					url := scheme + "+" + driver + "://" + rest
					code, _, stderr := callAgain([]string{"LOCKER_URL=" + url}, "run", "-k", "k", "--wait", "0", "--",
						"true")
					assert.Equal(t, exit.Unavailable, code)
					stderr = strings.ReplaceAll(stderr, "`", "'") // Redis 6.0 puts them around a command
					assert.Contains(t, stderr, tt.next)
					assert.NotContains(t, stderr, "address and password")
					assert.NotContains(t, stderr, ".: ", "a sentence ends, and goes on")
					assert.Equal(t, 1, strings.Count(stderr, "locker: "), stderr)
				})
			}
		})
	}
}

func TestTheNameOfTheProgramIsSaidOnce(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "run", "-k", "k", "--ttl", "1m", "--", "sh", "-c", "echo $$ >up; read x <go")
	require.NoError(t, syscall.Mkfifo(p.file("go"), 0o600))
	p.pid(t, "up")
	s.Kill()
	require.NoError(t, os.WriteFile(p.file("go"), []byte("on\n"), 0o600))
	p.exits(t, 0)
	assert.Contains(t, p.err.String(), `locker: unlock "k": `)
	assert.NotContains(t, p.err.String(), "locker: locker:")
}
