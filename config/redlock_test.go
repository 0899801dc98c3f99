package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
)

func quorum(change func(*config.Redlock), addrs ...string) *config.Config {
	c := &config.Config{Backend: "redlock"}
	for _, addr := range addrs {
		c.Redlock.Nodes = append(c.Redlock.Nodes, config.Node{Addr: addr})
	}
	if change != nil {
		change(&c.Redlock)
	}
	return c
}

func TestParseRedlock(t *testing.T) {
	abc := []string{"a:6379", "b:6379", "c:6379"}
	for in, want := range map[string]*config.Config{
		"redlock://a,b,c":                      quorum(nil, abc...),
		"redlock://a":                          quorum(nil, "a:6379"),
		"redlock://a:1,b:2":                    quorum(nil, "a:1", "b:2"),
		"redlock://[::1],[fe80::1%25eth0]:1,c": quorum(nil, "[::1]:6379", "[fe80::1%eth0]:1", "c:6379"),
		"redlock+rueidis://a,b,c/2?timeout=2s&budget=500ms": quorum(func(r *config.Redlock) {
			r.Driver, r.DB, r.Timeout, r.Budget = "rueidis", 2, config.Duration(2*time.Second),
				config.Duration(500*time.Millisecond)
		}, abc...),
		"redlock://a,b,c?guard=30s": quorum(func(r *config.Redlock) { r.Guard = config.Duration(30 * time.Second) },
			abc...),
		"redlock://a,b,c?db=2&driver=redigo": quorum(func(r *config.Redlock) { r.DB, r.Driver = 2, "redigo" },
			abc...),
		"redlock://u:p%2C%40@a,b,c": quorum(func(r *config.Redlock) {
			r.Username, r.Password = "u",
				"p,@"
		}, abc...),
		"redlock://u@a,b,c?password_file=f": quorum(func(r *config.Redlock) {
			r.Username, r.PasswordFile = "u",
				"f"
		}, abc...),
		"redlocks://a,b,c": quorum(func(r *config.Redlock) { r.TLS = &config.TLS{} }, abc...),
		"redlocks+goredis://a,b,c?tls_ca_file=f": quorum(func(r *config.Redlock) {
			r.Driver, r.TLS = "goredis",
				&config.TLS{CAFile: "f"}
		}, abc...),
		"redlock://%2Frun%2fa%2C%40.sock,b": quorum(nil, "/run/a,@.sock", "b:6379"),
	} {
		c, err := config.Parse(in)
		if assert.NoError(t, err, in) {
			assert.Equal(t, want, c, in)
		}
	}
}

func TestParseRedlockFaults(t *testing.T) {
	for in, want := range map[string][]string{
		"redlock:a,b":    {"followed by ://"},
		"redlock://":     {"URL: nodes: missing: give the addresses of three or five servers"},
		"redlock:///2":   {"URL: nodes: missing"},
		"redlock://a,,c": {"URL: nodes[1].addr: address missing"},
		"redlock://a,b,": {"URL: nodes[2].addr: address missing"},
		"redlock://a,:1,::1": {"URL: nodes[1].addr: host missing",
			"URL: nodes[2].addr: not host:port"},
		"redlock://a,b c":               {"URL: nodes[1].addr: one address expected"},
		"redlock://a,b,%2F":             {"URL: nodes[2].addr: not the path of a socket"},
		"redlock://a,b,%2Fx%z":          {"URL: nodes[2].addr: a % that"},
		"redlocks://a,%2Fx":             {"URL: nodes[1].addr: Redis does not speak TLS on a unix socket"},
		"redlock://a,b,A:06379":         {"URL: nodes[2].addr: the same as nodes[0].addr"},
		"redlock://[::1],b,[0::1]:6379": {"URL: nodes[2].addr: the same as nodes[0].addr"},
		"redlock://a,a,a": {"nodes[1].addr: the same as nodes[0]",
			"nodes[2].addr: the same as nodes[0]"},
		"redlock://" + strings.Repeat("a,", 32): {"URL: nodes: 33 nodes, more than the 32 allowed"},
		"redlock://a,b/x?budget=1&ttl=1ns": {"URL: db: not a whole number",
			"URL: budget: a number without a unit", "URL: ttl: 1ns"},
		"redlock://a?budget=0s":             {"budget: must be more than 0"},
		"redlock+nope://a,b,c":              {`URL: driver: unknown driver "nope"`},
		"redlock+redigo://a?driver=goredis": {"driver: given twice, and differently"},
		"redlock://a/1?db=2":                {"db: given twice, and differently"},
		"redlock://a?tls_ca_file=f":         {"tls_ca_file: only with redlocks://"},
		"redlocks://a?tls_key_file=f":       {"URL: tls_cert_file: missing"},
		"redlock://a?nodes=b":               {`unknown parameter "nodes" (known: ` + parametersOfRedlock + ")"},
		"redis://a?budget=1s":               {`unknown parameter "budget" (known: ` + parametersOfRedis + ")"},
		"redlok://a,b,c":                    {`unknown scheme "redlok": did you mean redlock?`},
		"redis://a,b,c": {"URL: addr: one address expected, not a list: " +
			"write redlock://h1,h2,h3 for several independent servers, redis+sentinel://h1,h2/name"},
		"rediss://u:" + secret + "@a:1,b:2/x": {"write redlock://h1,h2,h3", "db: "},
		"redlock://u:" + secret + "@a,b,a":    {"the same as nodes[0].addr"},
		"redlock://u:" + secret + "@a,u:x@b": {"URL: password: user and password are written once, before the " +
			"first host"},
		"redlock://a,u:" + secret + "@b":          {"user and password are written once"},
		"redlock://u:x," + secret + "@b":          {"in them, write , as %2C"},
		"redlock://u:x@" + secret + "@b":          {"write @ as %40"},
		"redlock://a,u:" + secret:                 {"nodes[1].addr: the port is not a number"},
		"redlock://u@a,b":                         {"URL: password: missing, although there is a username"},
		"redlock://u:" + secret + "@a,b?pass=x":   {"not among the parameters"},
		"redlock://u:x/" + secret + "@a,b,c":      {"write @ as %40"},
		"redlock://a,b?password_file=f&password=": {"not among the parameters"},
	} {
		t.Run(in, func(t *testing.T) {
			_, err := config.Parse(in)
			complains(t, err, want...)
		})
	}
}

func TestRedlockString(t *testing.T) {
	for _, s := range []string{
		"redlock://a:6379,b:6379,c:6379",
		"redlock+goredis://u%2C:[REDACTED]@[::1]:1,[fe80::1%25eth0]:2/2?budget=1s&prefix=&timeout=1s&ttl=5s",
		"redlocks://:[REDACTED]@h:6379?tls_ca_file=%2Fca.pem",
		"redlock://%2Frun%2Fa%20b%2C%40.sock,b:6379?password_file=f",
	} {
		c, err := config.Parse(strings.Replace(s, "[REDACTED]", secret, 1))
		require.NoError(t, err, s)
		assert.Equal(t, s, c.String())
	}

	// Settings of single nodes follow a #, so that nobody takes them for settings of all nodes.
	c := quorum(func(r *config.Redlock) {
		r.Nodes[0].Name, r.Nodes[1].Driver, r.Nodes[2].Password, r.Nodes[3].TLS = "n", "rueidis", secret,
			&config.TLS{ServerName: "s"}
	}, "a", "b", "c", "d")
	require.NoError(t, c.Validate())
	assert.Equal(t, "redlock://a:6379,b:6379,c:6379,d:6379"+
		"#nodes[0].name=n&nodes[1].driver=rueidis&nodes[2].password=%5BREDACTED%5D"+
		"&nodes[3].tls.server_name=s&nodes[3].tls=true", c.String())
	_, err := config.Parse(c.String())
	complains(t, err, "URL: address: ")

	// Wrong values are not shown, because they may be secrets.
	c = quorum(func(r *config.Redlock) { r.Nodes[1].Name = "redis://:" + secret + "@h" }, "a", "redis://:"+secret+"@h")
	assert.Equal(t, "redlock://a:6379,", c.String())
}

func TestValidateRedlock(t *testing.T) {
	all := func(change func(r *config.Redlock)) *config.Config { return quorum(change, "a", "b", "c") }
	for name, tt := range map[string]struct {
		c    *config.Config
		want []string
	}{
		"no nodes":   {quorum(nil), []string{"config: redlock.nodes: missing"}},
		"no address": {quorum(nil, "a", "", "c"), []string{"redlock.nodes[1].addr: address missing"}},
		"list":       {quorum(nil, "a,b"), []string{"redlock.nodes[0].addr: one address expected, not a list"}},
		"same address": {quorum(nil, "a", "b", "a:6379"),
			[]string{"redlock.nodes[2].addr: the same as nodes[0].addr"}},
		"same socket": {quorum(nil, "/run/a", "/run/../run/a"),
			[]string{"redlock.nodes[1].addr: the same as nodes[0].addr"}},
		"same IPv4": {quorum(nil, "10.0.0.1", "[::ffff:10.0.0.1]:6379"),
			[]string{"redlock.nodes[1].addr: the same as"}},
		"same name": {all(func(r *config.Redlock) { r.Nodes[0].Name, r.Nodes[2].Name = "n", "n" }),
			[]string{"redlock.nodes[2].name: the same as that of nodes[0]"}},
		"name of another": {all(func(r *config.Redlock) { r.Nodes[2].Name = "a:6379" }),
			[]string{"redlock.nodes[2].name: the same as that of nodes[0]"}},
		"odd name": {all(func(r *config.Redlock) { r.Nodes[2].Name = ":" + secret + "@h" }),
			[]string{"redlock.nodes[2].name: not the name of a node"}},
		"section": {all(func(r *config.Redlock) { r.Budget, r.Timeout, r.DB, r.Driver = -1, -1, -1, "x" }),
			[]string{"redlock.budget: neg", "redlock.timeout: neg", "redlock.db: neg",
				`redlock.driver: unknown driver "x"`}},
		"driver": {all(func(r *config.Redlock) { r.Nodes[1].Driver = "x" }),
			[]string{`redlock.nodes[1].driver: unknown driver "x"`}},
		"budget": {all(func(r *config.Redlock) { r.Budget = 1 }),
			[]string{"redlock.budget: 1ns is below the minimum of 1ms"}},
		"two passwords": {all(func(r *config.Redlock) { r.Password, r.PasswordFile = secret, "f" }),
			[]string{"redlock.password_file: there is a password"}},
		"node's two": {all(func(r *config.Redlock) { r.Nodes[1].Password, r.Nodes[1].PasswordFile = secret, "f" }),
			[]string{"redlock.nodes[1].password_file: there is a password"}},
		"user alone": {all(func(r *config.Redlock) { r.Username = "u" }), []string{"redlock.password: missing"}},
		"users alone": {all(func(r *config.Redlock) { r.Username, r.Nodes[1].Username = "u", "v" }),
			[]string{"redlock.password: missing", "redlock.nodes[1].password: missing"}},
		"one's user": {all(func(r *config.Redlock) { r.Nodes[1].Username = "v" }),
			[]string{"redlock.nodes[1].password: missing"}},
		"TLS halves": {all(func(r *config.Redlock) {
			r.TLS, r.Nodes[1].TLS = &config.TLS{CertFile: "c"},
				&config.TLS{KeyFile: "k"}
		}),
			[]string{"redlock.tls.key_file: missing", "redlock.nodes[1].tls.cert_file: missing"}},
		"TLS on a socket": {quorum(func(r *config.Redlock) { r.TLS = &config.TLS{} }, "a", "/s"),
			[]string{"redlock.nodes[1].addr: Redis does not speak TLS"}},
	} {
		t.Run(name, func(t *testing.T) { complains(t, tt.c.Validate(), tt.want...) })
	}
	assert.NoError(t, all(func(*config.Redlock) {}).Validate())
	assert.NoError(t, all(func(r *config.Redlock) {
		r.Username = "u"
		for i := range r.Nodes {
			r.Nodes[i].Password = config.Secret(fmt.Sprint(i))
		}
	}).Validate(), "a password for each")
	assert.NoError(t, (&config.Config{Backend: "memory", Redlock: config.Redlock{DB: -1}}).Validate(),
		"an unused section")
}

func TestLoadRedlock(t *testing.T) {
	want := &config.Config{
		Backend: "redlock", Prefix: ptr("p:"), TTL: config.Duration(10 * time.Second),
		Redlock: config.Redlock{
			Budget: config.Duration(time.Second), Driver: "goredis", Username: "locker", PasswordFile: "f", DB: 1,
			Timeout: config.Duration(5 * time.Second), TLS: &config.TLS{CAFile: "ca"},
			Nodes: []config.Node{
				{Name: "a", Addr: "10.0.0.1:6379"}, {Addr: "10.0.1.1", TLS: &config.TLS{ServerName: "b"}},
				{Name: "c", Addr: "10.0.2.1:6379", Driver: "rueidis", Username: "u", Password: secret},
			},
		},
	}
	c, err := config.Load(file(t,
		"backend: redlock", `prefix: "p:"`, "ttl: 10s", "redlock:", "  budget: 1s", "  driver: goredis",
		"  username: locker", "  password_file: f",
		"  db: 1", "  timeout: 5s", "  tls: {ca_file: ca}", "  nodes:", "    - {name: a, addr: 10.0.0.1:6379}",
		"    - addr: 10.0.1.1", "      tls:",
		"        server_name: b",
		"    - {name: c, addr: 10.0.2.1:6379, driver: rueidis, username: u, password: "+secret+"}"))
	require.NoError(t, err)
	assert.Equal(t, want, c)

	for _, encode := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
		text, err := encode(c)
		require.NoError(t, err)
		assert.NotContains(t, string(text), secret)
		_, err = config.Load(file(t, string(text)))
		complains(t, err, "redlock.nodes[2].password: this is the mask")
		back, err := config.Load(file(t, strings.Replace(string(text), "[REDACTED]", secret, 1)))
		require.NoError(t, err)
		assert.Equal(t, want, back)
	}

	c, err = config.Load(file(t, "backend: redlock", "redlock:", "  nodes:", "    - &n {addr: &a h, driver: redigo}",
		"    - {addr: i, name: *a}"))
	require.NoError(t, err)
	assert.Equal(t, quorum(func(r *config.Redlock) { r.Nodes[0].Driver, r.Nodes[1].Name = "redigo", "h" }, "h", "i"), c)
}

func TestLoadRedlockFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		lines string // "; " stands for a new line
		want  []string
	}{
		"no section": {"backend: redlock", []string{"locker.yaml: redlock.nodes: missing"}},
		"no nodes": {"backend: redlock; redlock:;   nodes: []",
			[]string{"locker.yaml:3: redlock.nodes: missing"}},
		"null": {"backend: redlock; redlock:;   nodes:", []string{"locker.yaml:3: redlock.nodes: no value"}},
		"text": {"backend: redlock; redlock:;   nodes: a,b,c",
			[]string{"locker.yaml:3: redlock.nodes: a list is expected here"}},
		"texts": {"backend: redlock; redlock:;   nodes: [a, {addr: b}]",
			[]string{"locker.yaml:3: redlock.nodes[0]: a section with fields is expected here, such as {addr"}},
		"empty element": {"backend: redlock; redlock:;   nodes:;     - addr: b;     -",
			[]string{"locker.yaml:5: redlock.nodes[1]: a section"}},
		"no address": {"backend: redlock; redlock:;   nodes:;     - addr: b;     - name: c",
			[]string{"locker.yaml:5: redlock.nodes[1].addr: address missing"}},
		"typo": {"backend: redlock; redlock:;   nodes:;     - addr: b;       nme: c",
			[]string{`locker.yaml:5: redlock.nodes[0]: unknown field "nme": did you mean name? ` +
				"(known: " + fieldsOfNode + ")"}},
		"not of a node": {"backend: redlock; redlock:;   nodes:;     - {addr: b, db: 1}",
			[]string{`redlock.nodes[0]: unknown field "db" (known`}},
		"not of all": {"backend: redlock; redlock:;   addr: a",
			[]string{`locker.yaml:3: redlock: unknown field "addr" ` +
				"(known: " + fieldsOfRedlock + ")",
				"nodes: missing"}},
		"numbered": {"backend: redlock; redlock:;   nodes[0]: {addr: a};   nodes: [{addr: b}]",
			[]string{`locker.yaml:3: redlock: unknown field (known`}},
		"twice": {"backend: redlock; redlock:;   nodes: [{addr: a}];   nodes: [{addr: b}]",
			[]string{"locker.yaml:4: redlock.nodes: given more than once"}},
		"itself": {"backend: redlock; redlock: &r;   nodes: [*r]",
			[]string{"locker.yaml:3: redlock.nodes[0]: unknown field \"nodes\"",
				"locker.yaml:3: redlock.nodes[0].addr: address missing"}},
		"same twice": {"backend: redlock; redlock:;   nodes:;     - addr: a;     - addr: b;     - addr: a:6379",
			[]string{"locker.yaml:6: redlock.nodes[2].addr: the same as nodes[0].addr"}},
		"same names": {"backend: redlock; redlock:;   nodes:;     - {addr: a, name: n};     - {addr: b, name: n}",
			[]string{"locker.yaml:5: redlock.nodes[1].name: the same as that of nodes[0]"}},
		"node password": {"backend: redlock; redlock:;   nodes:;     - {addr: a, pasword: hunter2}; " +
			"    - {addr: b, password: [hunter2]}",
			[]string{`redlock.nodes[0]: unknown field "pasword"`,
				"locker.yaml:5: redlock.nodes[1].password: a single value"}},
		"password piece": {"backend: redlock; redlock:;   nodes:;     - {addr: a, password: x,hunter2}",
			[]string{"locker.yaml:4: redlock.nodes[0]: an unknown field without a value"}},
		"everything": {"backend: redlock; ttl: 1; redlock:;   budget: 0s;   nodes:;     - {addr: 'a:x', driver: " +
			"nope};     - {addr: b, tls: {key_file: k}}",
			[]string{"locker.yaml:2: ttl", "locker.yaml:4: redlock.budget",
				"locker.yaml:6: redlock.nodes[0].addr: the port", "locker.yaml:6: redlock.nodes[0].driver",
				"locker.yaml:7: redlock.nodes[1].tls.cert_file: missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(file(t, strings.Split(tt.lines, "; ")...))
			complains(t, err, tt.want...)
		})
	}
}

func TestOverlayRedlock(t *testing.T) {
	base := func() *config.Config {
		return quorum(func(r *config.Redlock) {
			r.Password, r.Nodes[0].Name, r.Nodes[0].TLS = "old", "n", &config.TLS{CAFile: "ca"}
		}, "a", "b", "c")
	}
	for name, tt := range map[string]struct {
		environ []string
		want    *config.Config
	}{
		"fields": {
			[]string{
				"LOCKER_REDLOCK_BUDGET=2s", "LOCKER_REDLOCK_DRIVER=redigo", "LOCKER_REDLOCK_USERNAME=u",
				"LOCKER_REDLOCK_PASSWORD_FILE=f", "LOCKER_REDLOCK_DB=3",
				"LOCKER_REDLOCK_TIMEOUT=4s", "LOCKER_REDLOCK_TLS_SERVER_NAME=s", "LOCKER_REDLOCK_PORT=tcp://10.0.0.1:1",
				"=C:=C:\\", "LOCKER_REDIS_PASSWORD=other",
			},
			func() *config.Config {
				c := base()
				c.Redis.Password = "other"
				r := &c.Redlock
				r.Budget, r.Driver, r.Username, r.Password, r.PasswordFile = config.Duration(2*time.Second), "redigo",
					"u", "", "f"
				r.DB, r.Timeout, r.TLS = 3, config.Duration(4*time.Second), &config.TLS{ServerName: "s"}
				return c
			}(),
		},
		"other nodes": {[]string{"LOCKER_REDLOCK_NODES=d:1, e,f"},
			quorum(func(r *config.Redlock) { r.Password = "old" }, "d:1", "e", "f")},
		"nothing but the environment": {[]string{"LOCKER_URL=memory:", "LOCKER_BACKEND=redlock",
			"LOCKER_REDLOCK_NODES=d"}, quorum(nil, "d")},
		"over a URL": {[]string{"LOCKER_URL=redlock://d,e?budget=1s", "LOCKER_REDLOCK_NODES=f",
			"LOCKER_REDLOCK_TLS=true"},
			quorum(func(r *config.Redlock) { r.Budget, r.TLS = config.Duration(time.Second), &config.TLS{} }, "f")},
	} {
		t.Run(name, func(t *testing.T) {
			c := base()
			require.NoError(t, c.Overlay(tt.environ))
			assert.Equal(t, tt.want, c)
		})
	}
	for name, tt := range map[string]struct {
		environ []string
		want    []string
	}{
		"nodes": {[]string{"LOCKER_REDLOCK_NODES=d,,redis://:" + secret + "@h,D"},
			[]string{"LOCKER_REDLOCK_NODES[1].addr: address missing",
				"LOCKER_REDLOCK_NODES[2].addr: host:port expected, not a URL",
				"LOCKER_REDLOCK_NODES[3].addr: the same as nodes[0]"}},
		"values": {[]string{"LOCKER_REDLOCK_BUDGET=1", "LOCKER_REDLOCK_DB=" + secret, "LOCKER_REDLOCK_DRIVER=x"},
			[]string{"LOCKER_REDLOCK_BUDGET: a number without", "LOCKER_REDLOCK_DB: not",
				"LOCKER_REDLOCK_DRIVER: unknown"}},
		"unknown": {[]string{"LOCKER_REDLOCK_ADDR=h"},
			[]string{`environment: unknown variable "LOCKER_REDLOCK_ADDR"`}},
		"typo": {[]string{"LOCKER_REDLOCK_NODE=h"},
			[]string{`"LOCKER_REDLOCK_NODE": did you mean LOCKER_REDLOCK_NODES? ` +
				"(known: " + variablesOfRedlock}},
		"section": {[]string{"LOCKER_REDLOC_NODES=h"}, []string{`"LOCKER_REDLOC_NODES"`}},
		"in a URL": {[]string{"LOCKER_URL=redlock://u:" + secret + "@a,a"},
			[]string{"LOCKER_URL: nodes[1].addr: the same as nodes[0].addr"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, before := base(), base()
			complains(t, c.Overlay(tt.environ), tt.want...)
			assert.Equal(t, before, c, "unchanged")
		})
	}
	path := file(t, "backend: redlock", "redlock:", "  nodes:", "    - addr: a", "    - addr: b:x")
	_, err := config.Load(path)
	complains(t, err, "locker.yaml:5: redlock.nodes[1].addr: the port")
	c, err := config.Load(path, "LOCKER_REDLOCK_NODES=c,d:1")
	require.NoError(t, err)
	assert.Equal(t, quorum(nil, "c", "d:1"), c)
}

// fleet is a driver of servers that do not answer. It records which drivers were opened and closed.
type fleet struct {
	sync.Mutex
	opened []drivers.Config
	open   map[string]int // by address
}

var ships fleet

func init() {
	drivers.Register("xfleet", func(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
		ships.Lock()
		defer ships.Unlock()
		ships.opened = append(ships.opened, cfg)
		ships.open[cfg.Addr]++
		return &ship{addr: cfg.Addr}, nil
	})
}

type ship struct {
	addr string
	once sync.Once
}

func (s *ship) Do(context.Context, ...drivers.Command) ([]drivers.Reply, error) {
	return nil, drivers.NotSent(errors.New("nobody is there"))
}

func (s *ship) Close() error {
	s.once.Do(func() {
		ships.Lock()
		defer ships.Unlock()
		ships.open[s.addr]--
	})
	return nil
}

func (f *fleet) reset() { f.opened, f.open = nil, make(map[string]int) }

func (f *fleet) allClosed(t *testing.T, want int) {
	t.Helper()
	f.Lock()
	defer f.Unlock()
	assert.Len(t, f.opened, want)
	for addr, n := range f.open {
		assert.Zero(t, n, addr)
	}
}

func TestWhatTheDriversOfARedlockGet(t *testing.T) {
	ships.reset()
	pw := filepath.Join(t.TempDir(), "pw")
	require.NoError(t, os.WriteFile(pw, []byte("p\n"), 0o600))
	c := quorum(func(r *config.Redlock) {
		r.Driver, r.Username, r.PasswordFile, r.DB, r.Timeout = "xfleet", "u", pw, 2, config.Duration(3*time.Second)
		r.Nodes[1].Username, r.Nodes[1].Password = "v", "q"
	}, "a", "b:1", "/s")
	l, err := c.Open(t.Context())
	require.NoError(t, err)
	closeLater(t, l)
	assert.Equal(t, []drivers.Config{
		{Network: "tcp", Addr: "a:6379", Username: "u", Password: "p", DB: 2, Timeout: 3 * time.Second},
		{Network: "tcp", Addr: "b:1", Username: "v", Password: "q", DB: 2, Timeout: 3 * time.Second},
		{Network: "unix", Addr: "/s", Username: "u", Password: "p", DB: 2, Timeout: 3 * time.Second},
	}, loggedIn(t, ships.opened))

	ships.reset()
	c = quorum(func(r *config.Redlock) {
		r.Driver, r.TLS, r.Nodes[1].TLS = "xfleet", &config.TLS{}, &config.TLS{ServerName: "n"}
	}, "a", "b", "[::1]")
	l, err = c.Open(t.Context())
	require.NoError(t, err)
	closeLater(t, l)
	for i, name := range []string{"a", "n", "::1"} {
		assert.Equal(t, name, ships.opened[i].TLS.ServerName)
	}
}

// loggedIn returns configs with the user and the password of a connection in the place of Credentials.
func loggedIn(t *testing.T, configs []drivers.Config) (loggedIn []drivers.Config) {
	for _, c := range configs {
		var err error
		c.Username, c.Password, err = c.Login(t.Context())
		require.NoError(t, err)
		c.Credentials = nil
		loggedIn = append(loggedIn, c)
	}
	return loggedIn
}

func TestRedlockHalfOpen(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte(secret), 0o600))
	abc := func(change func(r *config.Redlock)) *config.Config {
		return quorum(func(r *config.Redlock) { r.Driver = "xfleet"; change(r) }, "a", "b", "c")
	}
	for name, tt := range map[string]struct {
		c      *config.Config
		opened int
		want   []string
	}{
		"a bad file": {abc(func(r *config.Redlock) { r.Nodes[2].TLS = &config.TLS{CAFile: text} }), 2,
			[]string{"config: redlock.nodes[2].tls.ca_file: no PEM certificate in " + text}},
		"a bad file of all": {abc(func(r *config.Redlock) { r.TLS = &config.TLS{CAFile: text} }), 0,
			[]string{"config: redlock.tls.ca_file: no PEM certificate"}},
		"several": {abc(func(r *config.Redlock) {
			r.PasswordFile, r.Nodes[1].TLS, r.Nodes[2].Password = "/no/such", &config.TLS{CAFile: text}, secret
		}), 1, []string{"config: redlock.password_file: file not found: /no/such",
			"redlock.nodes[1].tls.ca_file: no PEM certificate"}},
		"a password file": {abc(func(r *config.Redlock) { r.Nodes[0].PasswordFile = "/no/such" }), 2,
			[]string{"config: redlock.nodes[0].password_file: file not found: /no/such"}},
		"a certificate": {abc(func(r *config.Redlock) { r.TLS = &config.TLS{CertFile: text, KeyFile: text} }), 0,
			[]string{"config: redlock.tls.cert_file, key_file: no PEM certificate in " + text}},
	} {
		t.Run(name, func(t *testing.T) {
			ships.reset()
			_, err := tt.c.Open(t.Context())
			complains(t, err, tt.want...)
			ships.allClosed(t, tt.opened)
		})
	}
}

// TestRedlockNodesAllowed checks that this package and package redlock allow the same number of nodes.
func TestRedlockNodesAllowed(t *testing.T) {
	ships.reset()
	var hosts []string
	for i := range 32 {
		hosts = append(hosts, fmt.Sprintf("h%d", i))
	}
	open(t, "redlock+xfleet://"+strings.Join(hosts, ","))
}

func TestRedlock(t *testing.T) {
	secured, _ := redistest.StartTLS(t, "--requirepass", "p@ss")
	plain := []*redistest.Server{
		redistest.Start(t, "--requirepass", "p@ss"), redistest.Start(t, "--requirepass", "p@ss"),
		redistest.Start(t, "--requirepass", "p@ss"),
	}
	dead := redistest.Start(t)
	dead.Kill()
	hosts := plain[0].Addr() + "," + plain[1].Addr() + "," + plain[2].Addr()
	// This Redlock has two of the same servers, and one that is down. Each node has another driver.
	mixed := quorum(func(r *config.Redlock) {
		r.Password, r.DB = "p@ss", 1
		for i, d := range []string{"rueidis", "goredis", "redigo"} {
			r.Nodes[i].Driver = d
		}
	}, plain[0].Addr(), plain[1].Socket(), dead.Addr())
	down, err := mixed.Open(t.Context())
	require.NoError(t, err, "a node that is down")
	closeLater(t, down)
	for _, driver := range []string{"goredis", "redigo", "rueidis"} {
		t.Run(driver, func(t *testing.T) {
			l := open(t, "redlock+"+driver+"://:p%40ss@"+hosts+"/1?budget=5s")
			lease := steady.Lock(t, l, "k")
			_, err := down.TryLock(t.Context(), "k")
			assert.ErrorIs(t, err, locker.ErrHeld)
			steady.Unlock(t, lease)
			lease = steady.Lock(t, down, "k")
			_, err = l.TryLock(t.Context(), "k")
			assert.ErrorIs(t, err, locker.ErrHeld)
			steady.Unlock(t, lease)

			l = open(t, "redlocks+"+driver+"://:p%40ss@"+secured.Addr()+"?tls_ca_file="+secured.CAFile())
			steady.Unlock(t, steady.Lock(t, l, "k"))

			_, err = open(t, "redlock+"+driver+"://:"+secret+"@"+hosts).TryLock(t.Context(), "k")
			require.ErrorIs(t, err, locker.ErrNoQuorum, "wrong password")
			assert.NotContains(t, err.Error(), secret)
			assert.ErrorContains(t, err, plain[2].Addr(), "nodes are called by their addresses")
		})
	}
	twice := open(t,
		"redlock://:p%40ss@"+dead.Addr()+","+plain[1].Addr()+","+strings.Replace(plain[1].Addr(), "127.0.0.1",
			"localhost", 1))
	_, err = twice.TryLock(t.Context(), "k")
	require.ErrorIs(t, err, locker.ErrNoQuorum)
	assert.ErrorContains(t, err, plain[1].Addr()+" and localhost:", "a server given twice is named")
}
