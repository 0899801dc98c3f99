package config_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
)

func ptr[T any](v T) *T { return &v }

// secret is the password of these tests. No message of this module contains a part of it.
const secret = "hunter2"

// complains checks that err has one line for each of want, each containing its text, and no secret.
func complains(t *testing.T, err error, want ...string) {
	t.Helper()
	require.Error(t, err)
	assert.NotContains(t, err.Error(), secret)
	lines := strings.Split(err.Error(), "\n")
	assert.Len(t, lines, len(want), err.Error())
	for _, w := range want {
		assert.Contains(t, err.Error(), w)
	}
	for _, line := range lines {
		assert.True(t, strings.HasPrefix(line, "config: "), line)
	}
}

func redis(change func(*config.Config)) *config.Config {
	c := &config.Config{Backend: "redis", Redis: config.Redis{Addr: "localhost"}}
	change(c)
	return c
}

func TestValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		c    *config.Config
		want []string
	}{
		"nothing": {&config.Config{}, []string{"backend: missing: give one of memory, redis, redlock"}},
		"unknown backend": {&config.Config{Backend: "reddis"},
			[]string{`unknown backend "reddis": did you mean redis?`}},
		"TTL of 1ns": {&config.Config{Backend: "memory", TTL: 1},
			[]string{"ttl: 1ns is below the minimum of 10ms"}},
		"negative TTL": {&config.Config{Backend: "memory", TTL: -5}, []string{"ttl: negative"}},
		"TTL of a month": {&config.Config{Backend: "memory", TTL: config.Duration(30 * 24 * time.Hour)},
			[]string{"above the maximum of 24h"}},
		"no address": {&config.Config{Backend: "redis"}, []string{"redis.addr: address missing"}},
		"unknown driver": {redis(func(c *config.Config) { c.Redis.Driver = "goredsi" }),
			[]string{`redis.driver: unknown driver "goredsi": did you mean goredis? (known: goredis, redigo, rueidis`}},
		"not a driver": {redis(func(c *config.Config) { c.Redis.Driver = "go redis" }),
			[]string{"redis.driver: unknown driver (known: "}},
		"two passwords": {redis(func(c *config.Config) { c.Redis.Password, c.Redis.PasswordFile = secret, "f" }),
			[]string{"redis.password_file: there is a password, too"}},
		"user alone": {redis(func(c *config.Config) { c.Redis.Username = "u" }),
			[]string{"redis.password: missing, although there is a username"}},
		"negative db": {redis(func(c *config.Config) { c.Redis.DB = -1 }), []string{"redis.db: negative"}},
		"negative timeout": {redis(func(c *config.Config) { c.Redis.Timeout = -1 }),
			[]string{"redis.timeout: negative"}},
		"key alone": {redis(func(c *config.Config) { c.Redis.TLS = &config.TLS{KeyFile: "k"} }),
			[]string{"redis.tls.cert_file: missing"}},
		"certificate alone": {redis(func(c *config.Config) { c.Redis.TLS = &config.TLS{CertFile: "c"} }),
			[]string{"redis.tls.key_file: missing"}},
		"negative replicas": {redis(func(c *config.Config) { c.Redis.Replicas = -1 }), []string{"redis.replicas: "}},
		"time for no replicas": {redis(func(c *config.Config) { c.Redis.ReplicasTimeout = 1 }),
			[]string{"redis.replicas_timeout: has no effect without replicas"}},
		"negative guard": {redis(func(c *config.Config) { c.Redis.Guard = -1 }), []string{"redis.guard: negative"}},
		"guard below the TTL": {redis(func(c *config.Config) {
			c.TTL, c.Redis.Guard = config.Duration(time.Minute), config.Duration(time.Second)
		}), []string{"redis.guard: 1s is less than the ttl of 1m0s"}},
		"TLS on a socket": {redis(func(c *config.Config) { c.Redis.Addr = "/s"; c.Redis.TLS = &config.TLS{} }),
			[]string{"redis.tls: Redis does not speak TLS"}},
		"all at once": {redis(func(c *config.Config) {
			c.TTL, c.Redis = 1, config.Redis{Driver: "x", DB: -1, Password: secret, PasswordFile: "f"}
		}),
			[]string{"ttl: ", "redis.driver: ", "redis.addr: ", "redis.db: ", "redis.password_file: "}},
	} {
		t.Run(name, func(t *testing.T) { complains(t, tt.c.Validate(), tt.want...) })
	}
	assert.NoError(t, (&config.Config{Backend: "memory"}).Validate())
	assert.NoError(t, redis(func(*config.Config) {}).Validate())
	assert.NoError(t, (&config.Config{Backend: "memory", Redis: config.Redis{DB: -1}}).Validate(), "an unused section")
}

func TestAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"h": "h:6379", "h:": "h:6379", "h:1": "h:1", "10.0.0.1:65535": "10.0.0.1:65535",
		"[::1]": "[::1]:6379", "[::1]:1": "[::1]:1", "[fe80::1%eth0]:1": "[fe80::1%25eth0]:1",
	} {
		c := redis(func(c *config.Config) { c.Redis.Addr = addr })
		assert.NoError(t, c.Validate(), addr)
		assert.Equal(t, "redis://"+want, c.String())
	}
	for addr, want := range map[string]string{
		"h1:1,h2:2":                 "one address expected",
		"redis://:" + secret + "@h": "not a URL",
		"::1":                       "in brackets",
		"h:1:2":                     "in brackets",
		"[::1":                      "in brackets",
		"[::1]6379":                 "in brackets",
		"[h]:1":                     "in brackets",
		":6379":                     "host missing",
		"h:0":                       "1 to 65535",
		"h:65536":                   "1 to 65535",
		"h:" + secret:               "1 to 65535",
		secret + "@h":               "characters",
		"/":                         "not the path of a socket",
		"/run/":                     "not the path of a socket",
	} {
		c := redis(func(c *config.Config) { c.Redis.Addr = addr })
		complains(t, c.Validate(), want)
		assert.NotContains(t, c.String(), secret)
	}
}

func TestTheDocumentationNamesEverySetting(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for _, path := range config.Paths() {
		if strings.HasPrefix(path, "x") { // a backend of these tests
			continue
		}
		name := regexp.MustCompile(`[\s_{]` + path[strings.LastIndex(path, ".")+1:] + `\b`)
		assert.True(t, name.MatchString(strings.ToLower(string(doc))), "config/doc.go does not name %s", path)
	}
}

// What messages list as known. All of these lists are here, so that a new setting changes one file of tests.
const (
	// fieldsOfAll are the fields of a file.
	fieldsOfAll = "backend, prefix, ttl, patience, label, no_local_handover, log, audit, audit_hash_keys, tracing, " +
		"retry, redis, redlock"
	// parametersOfAll are the parameters that a URL of any backend may have.
	parametersOfAll = "prefix, ttl, patience, label, no_local_handover, log, audit, audit_hash_keys, tracing, " +
		"retry_for, retry_base_delay, " +
		"retry_max_delay, retry_per_second, retry_on_held, retry"
	parametersOfRedis   = parametersOfAll + ", driver, password_file, db, timeout, guard, replicas, replicas_timeout"
	parametersOfRedlock = parametersOfAll + ", budget, guard, driver, password_file, db, timeout"
	fieldsOfRetry       = "for, base_delay, max_delay, per_second, on_held"
	fieldsOfRedlock     = "budget, guard, driver, username, password, password_file, db, timeout, tls, nodes"
	fieldsOfNode        = "name, addr, sentinel, driver, username, password, password_file, tls"
	variablesOfRedlock  = "LOCKER_REDLOCK_BUDGET, LOCKER_REDLOCK_GUARD, LOCKER_REDLOCK_DRIVER, " // and more
)

// TestPaths checks that the settings follow from the structs. A section within a section is also a field, which the
// environment can set.
func TestPaths(t *testing.T) {
	reach := []string{"driver", "username", "password", "password_file", "tls.ca_file", "tls.cert_file", "tls.key_file",
		"tls.server_name", "tls.min_version", "tls"}
	one := []string{"db", "timeout", "guard"}
	sentinel := []string{"sentinel", "sentinel.master", "sentinel.addrs", "sentinel.username", "sentinel.password",
		"sentinel.password_file"}
	want := []string{"backend", "prefix", "ttl", "patience", "label", "no_local_handover", "log",
		"audit", "audit_hash_keys", "tracing", "retry.for",
		"retry.base_delay", "retry.max_delay", "retry.per_second", "retry.on_held", "retry",
		"redlock.budget", "redlock.nodes"}
	for path, names := range map[string][]string{
		"redis.": slices.Concat(reach, one, sentinel, []string{"addr", "cluster", "cluster.addrs", "replicas",
			"replicas_timeout"}),
		"redlock.":         slices.Concat(reach, one),
		"redlock.nodes[].": slices.Concat(reach, sentinel, []string{"name", "addr"}),
	} {
		for _, name := range names {
			want = append(want, path+name)
		}
	}
	assert.ElementsMatch(t, want,
		slices.DeleteFunc(config.Paths(), func(path string) bool { return strings.HasPrefix(path, "x") }))
}

func TestEncoding(t *testing.T) {
	c := &config.Config{
		Backend: "redis", Prefix: ptr(""), TTL: config.Duration(90 * time.Second),
		Redis: config.Redis{Addr: "h:1", Username: "u", Password: secret, DB: 2, TLS: &config.TLS{CAFile: "ca"}},
	}
	asJSON, err := json.Marshal(c)
	require.NoError(t, err)
	assert.JSONEq(t,
		`{"backend":"redis","prefix":"","ttl":"1m30s","redis":{"addr":"h:1","username":"u","password":"[REDACTED]",`+
			`"db":2,"tls":{"ca_file":"ca"}}}`, string(asJSON))
	asYAML, err := yaml.Marshal(c)
	require.NoError(t, err)
	assert.NotContains(t, string(asYAML), secret)

	var back config.Config
	assert.ErrorContains(t, json.Unmarshal(asJSON, &back), "mask", "what was printed has lost its password")
	assert.ErrorContains(t, yaml.Unmarshal(asYAML, &back), "mask")

	c.Redis.Username, c.Redis.Password = "", ""
	asJSON, err = json.Marshal(c)
	require.NoError(t, err)
	asYAML, err = yaml.Marshal(c)
	require.NoError(t, err)
	var fromJSON, fromYAML config.Config
	require.NoError(t, json.Unmarshal(asJSON, &fromJSON))
	require.NoError(t, yaml.Unmarshal(asYAML, &fromYAML), "as part of a program's own file")
	assert.Equal(t, c, &fromJSON)
	assert.Equal(t, c, &fromYAML)
}

func TestDuration(t *testing.T) {
	for in, want := range map[string]string{
		`10`: "without a unit", `"10"`: "without a unit", `1.5`: "without a unit", `-1`: "without a unit",
		`"0"`:  "without a unit",
		`"0s"`: "more than 0", `"-1s"`: "more than 0", `"soon"`: "not a duration", `"10 s"`: "not a duration",
		`true`: "not a duration",
	} {
		var d config.Duration
		assert.ErrorContains(t, json.Unmarshal([]byte(in), &d), want, in)
		assert.ErrorContains(t, yaml.Unmarshal([]byte(in), &d), want, in)
	}
	var d config.Duration
	require.NoError(t, json.Unmarshal([]byte(`"1m30s"`), &d))
	assert.Equal(t, config.Duration(90*time.Second), d)
}
