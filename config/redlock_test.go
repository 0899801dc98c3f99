package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
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
