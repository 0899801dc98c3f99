package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
)

// file writes lines to a file called locker.yaml and returns its path.
func file(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "locker.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	return path
}

func TestLoad(t *testing.T) {
	whole := &config.Config{
		Backend: "redis", Prefix: ptr(""), TTL: config.Duration(10 * time.Second),
		Redis: config.Redis{
			Driver: "rueidis", Addr: "h:1", Username: "locker", Password: "012:#3", DB: 2,
			Timeout: config.Duration(time.Second),
			TLS:     &config.TLS{CAFile: "ca", CertFile: "cert", KeyFile: "key", ServerName: "n"},
		},
	}
	for name, tt := range map[string]struct {
		lines []string
		want  *config.Config
	}{
		"memory": {[]string{"backend: memory"}, &config.Config{Backend: "memory"}},
		"whole": {[]string{
			"# a comment", "backend: redis", `prefix: ""`, "ttl: 10s", "redis:", "  driver: rueidis", "  addr: h:1",
			"  username: locker",
			`  password: "012:#3"`, "  db: 2", "  timeout: 1s", "  tls:", "    ca_file: ca", "    cert_file: cert",
			"    key_file: key",
			"    server_name: n",
		}, whole},
		"JSON": {[]string{
			`{"backend": "redis", "prefix": "", "ttl": "10s", "redis": {"driver": "rueidis", "addr": "h:1",`,
			`"username": "locker", "password": "012:#3",`,
			`"db": 2, "timeout": "1s", "tls": {"ca_file": "ca", "cert_file": "cert", "key_file": "key", "server_name": "n"}}}`,
		}, whole},
		"a password of digits is a text": {[]string{"backend: redis", "redis:", "  addr: h", "  password: 007"},
			&config.Config{Backend: "redis", Redis: config.Redis{Addr: "h", Password: "007"}}},
		"TLS with the system's roots": {[]string{"backend: redis", "redis:", "  addr: h", "  tls: {}"},
			&config.Config{Backend: "redis", Redis: config.Redis{Addr: "h", TLS: &config.TLS{}}}},
		"socket": {[]string{"backend: redis", "redis: {addr: /run/r.sock}"},
			&config.Config{Backend: "redis", Redis: config.Redis{Addr: "/run/r.sock"}}},
		"guard": {[]string{"backend: redis", "redis: {addr: h, guard: 30s}"},
			&config.Config{Backend: "redis", Redis: config.Redis{Addr: "h", Guard: config.Duration(30 * time.Second)}}},
		"anchor": {[]string{"backend: redis", "ttl: &t 3s", "redis:", "  addr: h", "  timeout: *t"},
			&config.Config{Backend: "redis", TTL: config.Duration(3 * time.Second),
				Redis: config.Redis{Addr: "h", Timeout: config.Duration(3 * time.Second)}}},
		"unused section": {[]string{"backend: memory", "redis:", "  addr: h"},
			&config.Config{Backend: "memory", Redis: config.Redis{Addr: "h"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Load(file(t, tt.lines...))
			require.NoError(t, err)
			assert.Equal(t, tt.want, c)
		})
	}
}

func TestLoadFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		lines string // "; " stands for a new line
		want  []string
	}{
		"empty":      {"", []string{"locker.yaml: empty"}},
		"comments":   {"# nothing", []string{"locker.yaml: empty"}},
		"null":       {"---", []string{"a section with fields is expected", "backend: missing"}},
		"list":       {"- backend: memory", []string{"locker.yaml:1: a section", "backend: missing"}},
		"no backend": {"ttl: 5s", []string{"locker.yaml: backend: missing: give one of memory, redis, redlock"}},
		"typo": {"backend: memory; tttl: 5s",
			[]string{`locker.yaml:2: unknown field "tttl": did you mean ttl? ` +
				"(known: " + fieldsOfAll}},
		"typo below": {"backend: redis; redis:;   adr: h",
			[]string{`locker.yaml:3: redis: unknown field "adr": did you mean addr?`,
				"locker.yaml: redis.addr: address missing"}},
		"typo in TLS": {"backend: redis; redis:;   addr: h;   tls:;     cafile: f",
			[]string{`locker.yaml:5: redis.tls: unknown field "cafile": did you mean ca_file? ` +
				"(known: ca_file, cert_file, key_file, server_name, min_version)"}},
		"dots": {"backend: redis; redis.addr: h",
			[]string{`unknown field "redis.addr"`, "redis.addr: address missing"}},
		"odd key": {"backend: memory; [a]: b", []string{"locker.yaml:2: unknown field (known"}},
		"duplicate": {"backend: memory; ttl: 1s; ttl: 2s",
			[]string{"locker.yaml:3: ttl: given more than once"}},
		"two documents": {"backend: memory; ---; backend: redis", []string{"locker.yaml:2: a second document"}},
		"TTL 0":         {"backend: memory; ttl: 0", []string{"locker.yaml:2: ttl: a number without a unit"}},
		"TTL 0s":        {"backend: memory; ttl: 0s", []string{"locker.yaml:2: ttl: must be more than 0"}},
		"TTL 10": {"backend: memory; ttl: 10",
			[]string{"locker.yaml:2: ttl: a number without a unit: write 10s"}},
		"TTL 1ns": {"backend: memory; ttl: 1ns",
			[]string{"locker.yaml:2: ttl: 1ns is below the minimum of 10ms"}},
		"TTL -1s":  {"backend: memory; ttl: -1s", []string{"locker.yaml:2: ttl: must be more than 0"}},
		"no value": {"backend: memory; prefix:", []string{"locker.yaml:2: prefix: no value"}},
		"empty TLS section": {"backend: redis; redis:;   addr: h;   tls:",
			[]string{"locker.yaml:4: redis.tls: no value"}},
		"TLS as a switch": {"backend: redis; redis:;   addr: h;   tls: true",
			[]string{"locker.yaml:4: redis.tls: a section"}},
		"list for a value": {"backend: redis; redis:;   addr: [h, i]",
			[]string{"locker.yaml:3: redis.addr: a single value"}},
		"db": {"backend: redis; redis:;   addr: h;   db: 1.5",
			[]string{"locker.yaml:4: redis.db: not a whole number"}},
		"replicas of all": {"backend: memory; replicas: 1", []string{"locker.yaml:2: replicas: only for one Redis"}},
		"replicas of a Redlock": {"backend: redlock; redlock:;   replicas: 1;   nodes: [{addr: a, replicas: 1}]",
			[]string{"locker.yaml:3: redlock.replicas: only for one",
				"locker.yaml:4: redlock.nodes[0].replicas: only for one"}},
		"driver": {"backend: redis; redis:;   addr: h;   driver: x",
			[]string{`locker.yaml:4: redis.driver: unknown driver "x" (known: goredis`}},
		"several": {"backend: reddis; ttl: 1; redis:;   db: x",
			[]string{"locker.yaml:1: backend", "locker.yaml:2: ttl", "locker.yaml:4: redis.db"}},
		"not YAML": {"backend: memory: x", []string{"not YAML: mapping values are not allowed"}},
		"tab":      {"backend: redis; redis:; \taddr: h", []string{"not YAML"}},
		"password in the typo": {"backend: redis; redis:;   addr: h;   pasword: hunter2",
			[]string{`locker.yaml:4: redis: unknown field "pasword": did you mean password?`}},
		"password by a typo": {"backend: redis; ttl: 1; redis:;   addr: h;   password: hunter2;   tmeout: 1s",
			[]string{"ttl", `unknown field "tmeout": did you mean timeout?`}},
		"password as a list": {"backend: redis; redis:;   addr: h;   password: [hunter2]",
			[]string{"locker.yaml:4: redis.password: a single value"}},
		"password as a map": {"backend: redis; redis:;   addr: h;   password: {hunter2}",
			[]string{"locker.yaml:4: redis.password: a single value"}},
		"password as an alias": {"backend: redis; redis:;   addr: h;   password: *hunter2", []string{"not YAML"}},
		"password as an anchor": {"backend: redis; redis:;   addr: h;   password: &hunter2",
			[]string{"redis.password: no value"}},
		"password as a tag": {"backend: redis; redis:;   addr: h;   password: !hunter2 x",
			[]string{"redis.password: a single value"}},
		"encrypted password": {"backend: redis; redis:;   addr: h;   password: !vault hunter2",
			[]string{"redis.password: a single value"}},
		"password with comma": {"backend: redis; redis: {addr: h, password: x,hunter2}",
			[]string{"locker.yaml:2: redis: an unknown field without a value"}},
		"password with braces": {"backend: redis; redis:;   addr: h;   password: {{hunter2}}",
			[]string{"redis.password: a single value"}},
		"password with colon": {"backend: redis; redis:;   addr: h;   password: x: hunter2",
			[]string{"locker.yaml:4: not YAML"}},
		"password with quote": {"backend: redis; redis:;   addr: h;   password: \"hunter2", []string{"not YAML"}},
		"password with %":     {"backend: redis; redis:;   addr: h;   password: %hunter2", []string{"not YAML"}},
		"password, escaped":   {"backend: redis; redis:;   addr: h;   password: \"\\hunter2\"", []string{"not YAML"}},
		"password as db": {"backend: redis; redis:;   addr: h;   db: hunter2",
			[]string{"redis.db: not a whole number"}},
		"empty password": {"backend: redis; redis:;   addr: h;   username: u;   password: ''",
			[]string{"locker.yaml:5: redis.password: empty"}},
		"masked password": {"backend: redis; redis:;   addr: h;   password: '[REDACTED]'",
			[]string{"redis.password: this is the mask"}},
		"both passwords": {"backend: redis; redis:;   addr: h;   password: hunter2;   password_file: f",
			[]string{"locker.yaml:5: redis.password_file: there is a password, too"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(file(t, strings.Split(tt.lines, "; ")...))
			complains(t, err, tt.want...)
		})
	}
	_, err := config.Load(filepath.Join(t.TempDir(), "missing.yaml"))
	complains(t, err, "config: file not found: ")
	assert.ErrorContains(t, err, "missing.yaml")
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzLoad(f *testing.F) {
	f.Add("backend: memory\n---\n")
	f.Add("backend: redis\nredis: {addr: h, tls: {}, password: &a x, username: *a}\n")
	f.Add("backend: redlock\nredlock: {nodes: [{addr: h, tls: {}}, &a {addr: i, name: x}], budget: 1s}\n")
	f.Add("backend: redlock\nredlock: &a {nodes: &b [*a, *b, h, {nodes[0]: x}], nodes: *b}\n")
	f.Add("<<: &a [*a]\n? [x]\n: y\n")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "f.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if c, err := config.Load(path); err == nil {
			assert.NoError(t, c.Validate())
		}
	})
}
