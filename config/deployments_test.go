package config_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
)

func sentinelOf(master string, addrs ...string) *config.Sentinel {
	return &config.Sentinel{Master: master, Addrs: addrs}
}

func TestParseDeployments(t *testing.T) {
	for in, want := range map[string]config.Redis{
		"redis+sentinel://s1/m":                {Sentinel: sentinelOf("m", "s1:26379")},
		"REDIS+Sentinel://s1:1,s2,[::1]/m/3":   {Sentinel: sentinelOf("m", "s1:1", "s2:26379", "[::1]:26379"), DB: 3},
		"redis+sentinel://s1/m?db=3":           {Sentinel: sentinelOf("m", "s1:26379"), DB: 3},
		"redis+sentinel+rueidis://s1/m":        {Sentinel: sentinelOf("m", "s1:26379"), Driver: "rueidis"},
		"valkey+sentinel+goredis://s1/m":       {Sentinel: sentinelOf("m", "s1:26379"), Driver: "goredis"},
		"redis+sentinel://s1/m?driver=goredis": {Sentinel: sentinelOf("m", "s1:26379"), Driver: "goredis"},
		"redis+sentinel://u:p@s1,s2/m?sentinel_username=v&sentinel_password_file=f": {
			Username: "u", Password: "p",
			Sentinel: &config.Sentinel{Master: "m", Addrs: config.Addrs{"s1:26379", "s2:26379"}, Username: "v",
				PasswordFile: "f"},
		},
		"rediss+sentinel://s1/m?tls_ca_file=f": {
			Sentinel: sentinelOf("m", "s1:26379"), TLS: &config.TLS{CAFile: "f"},
		},
		"valkeys+sentinel://s1/m":   {Sentinel: sentinelOf("m", "s1:26379"), TLS: &config.TLS{}},
		"redis+cluster://a,b:1":     {Cluster: &config.Cluster{Addrs: config.Addrs{"a:6379", "b:1"}}},
		"redis+cluster+rueidis://a": {Cluster: &config.Cluster{Addrs: config.Addrs{"a:6379"}}, Driver: "rueidis"},
		"rediss+cluster://a/0":      {Cluster: &config.Cluster{Addrs: config.Addrs{"a:6379"}}, TLS: &config.TLS{}},
		"valkey+cluster://a":        {Cluster: &config.Cluster{Addrs: config.Addrs{"a:6379"}}},
		"valkey://h/1":              {Addr: "h:6379", DB: 1},
		"valkeys+redigo://h":        {Addr: "h:6379", Driver: "redigo", TLS: &config.TLS{}},
	} {
		c, err := config.Parse(in)
		if assert.NoError(t, err, in) {
			assert.Equal(t, &config.Config{Backend: "redis", Redis: want}, c, in)
			if want.Password == "" {
				again, err := config.Parse(c.String())
				require.NoError(t, err, c.String())
				assert.Equal(t, c, again, c.String())
			}
		}
	}
}

func TestStringOfDeployments(t *testing.T) {
	for _, s := range []string{
		"redis+sentinel://s1:26379,s2:26379/mymaster/2?ttl=1m0s",
		"rediss+sentinel+rueidis://u:[REDACTED]@s1:1/m?sentinel_password_file=f&sentinel_username=v&tls_ca_file=a",
		"redis+cluster://a:6379,[::1]:1",
		"rediss+cluster+goredis://:[REDACTED]@a:6379",
	} {
		c, err := config.Parse(strings.Replace(s, "[REDACTED]", secret, 1))
		require.NoError(t, err, s)
		assert.Equal(t, s, c.String())
	}
}

func TestDeploymentFaults(t *testing.T) {
	for in, want := range map[string][]string{
		"redis+sentinel://s1":                   {"sentinel_master: missing: the name that the sentinels give the master"},
		"redis+sentinel://s1/":                  {"sentinel_master: missing"},
		"redis+sentinel:///m":                   {"sentinel_addrs: missing: write host:26379"},
		"redis+sentinel://s1/m/x":               {"db: not a whole number"},
		"redis+sentinel://s1,/m":                {"sentinel_addrs: number 2: address missing, e.g. localhost:26379"},
		"redis+sentinel://s1,s1/m":              {"sentinel_addrs: the same address twice"},
		"redis+sentinel://s1/" + secret + "%20": {"sentinel_master: not a name that a sentinel accepts"},
		"redis+sentinel+redigo://s1/m": {
			"driver redigo reaches standalone servers, not Sentinel deployments: use goredis or rueidis",
		},
		"redis+cluster://a?driver=redigo":           {"driver redigo reaches standalone servers, not clusters: use goredis"},
		"redis+rueidis+sentinel://s1":               {"write the driver last, and once, as in"},
		"redis+sentinel+goredi://s1/m":              {`unknown driver "goredi": did you mean goredis?`},
		"redis+cluster+://a":                        {"there is no driver after the plus sign"},
		"redis+cluster://a/1":                       {"db: a cluster has only database 0"},
		"redis+cluster://a?replicas=1":              {"replicas: WAIT is not supported behind a cluster"},
		"redis+cluster://":                          {"cluster_addrs: missing: write host:6379"},
		"redis+sentinel:s1":                         {"must be followed by ://"},
		"redis+sentinel://s1/m?tls_ca_file=f":       {"tls_ca_file: only with rediss+sentinel://"},
		"redis+cluster://a?sentinel_username=u":     {`unknown parameter "sentinel_username"`},
		"redis+sentinel://s1/m?sentinel_username=u": {"sentinel_password: missing, although there is a username"},

		"redis+sentinel://u:" + secret + "@s1,u:" + secret + "@s2/m": {"user and password are written once"},
		"redis+cluster://u:" + secret + "@a,u:" + secret + "@b":      {"user and password are written once"},
		"redis+sentinel://s1/m?sentinel_password=" + secret:          {"parameters: use sentinel_password_file"},
		"redis+sentinel://s1/m?sentinelMasterId=" + secret:           {"write it behind the sentinels, as in"},
		"redis+sentinel://s1 s2/m":                                   {"sentinel_addrs: separated by something else"},
		"redis+cluster://h1;h2":                                      {"cluster_addrs: separated by something else"},
		"redis+sentinels://s1/m":                                     {"redis+sentinel://, or rediss+sentinel://"},
		"valkey+clster://h/m":                                        {"did you mean redis+cluster://"},
		"valkey-sentinel://h/m":                                      {"write valkey+sentinel://host:26379"},
		"valkey-cluster://h":                                         {"write valkey+cluster://host:6379"},
		"redis+tls://h":                                              {"write rediss://"},
	} {
		_, err := config.Parse(in)
		complains(t, err, want...)
	}
}

func TestLoadDeployments(t *testing.T) {
	c, err := config.Load(file(t, "backend: redis", "redis:", "  sentinel:", "    master: m",
		"    addrs: [s1, 's2:1']", "    username: v", "    password_file: f", "  username: u", "  password: p"))
	require.NoError(t, err)
	want := config.Redis{Username: "u", Password: "p", Sentinel: &config.Sentinel{
		Master: "m", Addrs: config.Addrs{"s1", "s2:1"}, Username: "v", PasswordFile: "f"}}
	assert.Equal(t, want, c.Redis)
	c, err = config.Load(file(t, "backend: redis", "redis: {cluster: {addrs: 'a, b:1'}}"),
		"LOCKER_REDIS_CLUSTER_ADDRS=c,d")
	require.NoError(t, err)
	assert.Equal(t, config.Redis{Cluster: &config.Cluster{Addrs: config.Addrs{"c", "d"}}}, c.Redis)

	var fromEnv config.Config
	require.NoError(t, fromEnv.Overlay([]string{"LOCKER_BACKEND=redis", "LOCKER_REDIS_SENTINEL_MASTER=m",
		"LOCKER_REDIS_SENTINEL_ADDRS=s1, s2:1", "LOCKER_REDIS_SENTINEL_USERNAME=v",
		"LOCKER_REDIS_SENTINEL_PASSWORD_FILE=f", "LOCKER_REDIS_USERNAME=u", "LOCKER_REDIS_PASSWORD=p"}))
	assert.Equal(t, want, fromEnv.Redis)

	for text, complaint := range map[string]string{
		"redis: {addr: h, sentinel: {master: m, addrs: s1}}":                      "redis.addr: there are sentinels or nodes",
		"redis: {cluster: {addrs: a}, sentinel: {master: m, addrs: s1}}":          "redis.cluster: there are sentinels, too",
		"redis: {sentinel: {master: m, addrs: []}}":                               "redis.sentinel.addrs: an empty list",
		"redis: {sentinel: {master: m, addrs: [{a: b}]}}":                         "one address is expected in each place",
		"redis: {sentinel: {master: m, addrs: ['a,b']}}":                          "one address is expected in each place",
		"redis: {sentinel: {master: m, addrs: s, user: m}}":                       `unknown field "user" (known: master,`,
		"redis: {sentinel: {master: m, addrs: [s1, 's2:" + secret + "']}}":        "number 2: the port is not a number",
		"redis: {sentinel: {master: m, addrs: s, password: a, password_file: f}}": "there is a password, too",
	} {
		_, err := config.Load(file(t, "backend: redis", text))
		complains(t, err, complaint)
	}
}

func TestSentinelsOfNodes(t *testing.T) {
	c, err := config.Load(file(t, "backend: redlock", "redlock:", "  nodes:", "    - {addr: a}", "    - {addr: b}",
		"    - {sentinel: {master: m, addrs: s1}}"))
	require.NoError(t, err)
	assert.Equal(t, config.Node{Sentinel: sentinelOf("m", "s1")}, c.Redlock.Nodes[2])
	c, err = config.Load(file(t, "backend: redlock", "redlock:", "  nodes:", "    - {addr: a}",
		"    - {sentinel: {master: m, addrs: s1, password_file: /no/such}}"))
	require.NoError(t, err)
	_, err = c.Open(t.Context())
	complains(t, err, "redlock.nodes[1].sentinel.password_file: file not found: /no/such")
	const sentinel = "sentinel: {master: m, addrs: s}"
	for text, complaint := range map[string]string{
		"{addr: a, " + sentinel + "}":                           "nodes[0].addr: there are sentinels, too",
		"{sentinel: {addrs: s}}":                                "nodes[0].sentinel.master: missing",
		"{addr: a, cluster: {addrs: a}}":                        "a cluster cannot be a node of a Redlock",
		"{driver: redigo, " + sentinel + "}":                    "driver redigo reaches standalone servers, not",
		"{" + sentinel + "}, {" + sentinel + "}":                "the same as nodes[0]",
		"{" + sentinel + "}, {sentinel: {master: m, addrs: t}}": "nodes[1].name: the same as that of nodes[0]",
	} {
		_, err := config.Load(file(t, "backend: redlock", "redlock: {nodes: ["+text+"]}"))
		complains(t, err, complaint)
	}
}
