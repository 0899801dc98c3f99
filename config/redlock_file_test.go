package config_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker/config"
)

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
