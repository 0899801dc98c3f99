package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
)

func TestOverlay(t *testing.T) {
	base := func() *config.Config {
		return &config.Config{
			Backend: "redis", Prefix: ptr("p:"), TTL: config.Duration(time.Minute),
			Redis: config.Redis{Addr: "h", Username: "u", Password: "old", TLS: &config.TLS{CAFile: "ca"}},
		}
	}
	for name, tt := range map[string]struct {
		environ []string
		want    func(c *config.Config)
	}{
		"nothing": {nil, func(*config.Config) {}},
		"others": {[]string{"HOME=/", "LOCKER", "LOCKER_JOURNAL=/j", "LOCKER_KEY=k", "LOCKERS_REDIS_X=1"},
			func(*config.Config) {}},
		"empty": {[]string{"LOCKER_URL=", "LOCKER_TTL=", "LOCKER_PREFIX=", "LOCKER_REDIS_PASSWORD="},
			func(*config.Config) {}},
		"Kubernetes": {[]string{
			"LOCKER_PORT=tcp://10.0.0.1:80", "LOCKER_SERVICE_HOST=10.0.0.1", "LOCKER_REDIS_SERVICE_HOST=10.0.0.1",
			"LOCKER_REDIS_SERVICE_PORT=1",
			"LOCKER_REDIS_SERVICE_PORT_REDIS=1", "LOCKER_REDIS_PORT=tcp://10.0.0.1:1",
			"LOCKER_REDIS_PORT_1_TCP=tcp://10.0.0.1:1", "LOCKER_REDIS_PORT_1_TCP_ADDR=10.0.0.1",
		}, func(*config.Config) {}},
		"fields": {
			[]string{
				"LOCKER_BACKEND=redis", "LOCKER_PREFIX=q:", "LOCKER_TTL=1s", "LOCKER_REDIS_DRIVER=redigo",
				"LOCKER_REDIS_ADDR=i:1", "LOCKER_REDIS_USERNAME=v",
				"LOCKER_REDIS_PASSWORD=new", "LOCKER_REDIS_DB=3", "LOCKER_REDIS_TIMEOUT=2s",
				"LOCKER_REDIS_TLS_CERT_FILE=a", "LOCKER_REDIS_TLS_KEY_FILE=b", "LOCKER_REDIS_TLS_SERVER_NAME=c",
			},
			func(c *config.Config) {
				c.Prefix, c.TTL = ptr("q:"), config.Duration(time.Second)
				c.Redis = config.Redis{Driver: "redigo", Addr: "i:1", Username: "v", Password: "new", DB: 3,
					Timeout: config.Duration(2 * time.Second),
					TLS:     &config.TLS{CAFile: "ca", CertFile: "a", KeyFile: "b", ServerName: "c"}}
			},
		},
		"a password file replaces the password": {[]string{"LOCKER_REDIS_PASSWORD_FILE=f"},
			func(c *config.Config) { c.Redis.Password, c.Redis.PasswordFile = "", "f" }},
		"the URL replaces everything": {[]string{"LOCKER_URL=memory:"},
			func(c *config.Config) { *c = config.Config{Backend: "memory"} }},
		"the others win over the URL": {[]string{"LOCKER_URL=redis://u@h?ttl=1s", "LOCKER_TTL=2s",
			"LOCKER_REDIS_PASSWORD=pw"},
			func(c *config.Config) {
				*c = config.Config{Backend: "redis", TTL: config.Duration(2 * time.Second),
					Redis: config.Redis{Addr: "h:6379", Username: "u", Password: "pw"}}
			}},
		"replicas": {[]string{"LOCKER_REDIS_REPLICAS=1", "LOCKER_REDIS_REPLICAS_TIMEOUT=200ms"}, func(c *config.Config) {
			c.Redis.Replicas, c.Redis.ReplicasTimeout = 1, config.Duration(200*time.Millisecond)
		}},
		"guard": {[]string{"LOCKER_REDIS_GUARD=2m"}, func(c *config.Config) {
			c.Redis.Guard = config.Duration(2 * time.Minute)
		}},
		"TLS on": {[]string{"LOCKER_URL=redis://h", "LOCKER_REDIS_TLS=true"}, func(c *config.Config) {
			*c = config.Config{Backend: "redis", Redis: config.Redis{Addr: "h:6379", TLS: &config.TLS{}}}
		}},
		"TLS off": {[]string{"LOCKER_REDIS_TLS=0", "LOCKER_REDIS_TLS_SERVER_NAME=c"},
			func(c *config.Config) { c.Redis.TLS = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			c, want := base(), base()
			require.NoError(t, c.Overlay(tt.environ))
			tt.want(want)
			assert.Equal(t, want, c)
		})
	}
}

func TestOverlayFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		environ []string
		want    []string
	}{
		"typo": {[]string{"LOCKER_TLL=1s"},
			[]string{`environment: unknown variable "LOCKER_TLL": did you mean LOCKER_TTL?`}},
		"typo, password": {[]string{"LOCKER_REDIS_PASWORD=" + secret},
			[]string{`"LOCKER_REDIS_PASWORD": did you mean LOCKER_REDIS_PASSWORD?`}},
		"ours": {[]string{"LOCKER_REDIS_HOST=h", "LOCKER_REDIS_PORT=6379"},
			[]string{"LOCKER_REDIS_HOST", "LOCKER_REDIS_PORT"}},
		"values": {[]string{"LOCKER_BACKEND=x", "LOCKER_TTL=5", "LOCKER_REDIS_DB=" + secret,
			"LOCKER_REDIS_TIMEOUT=" + secret, "LOCKER_REDIS_TLS=" + secret},
			[]string{"LOCKER_BACKEND: unknown backend", "LOCKER_TTL: a number without a unit", "LOCKER_REDIS_DB: ",
				"LOCKER_REDIS_TIMEOUT: ", "LOCKER_REDIS_TLS: neither"}},
		"replicas": {[]string{"LOCKER_REPLICAS=1", "LOCKER_REDLOCK_REPLICAS=1"},
			[]string{"LOCKER_REPLICAS: only for one Redis", "LOCKER_REDLOCK_REPLICAS: only for one"}},
		"range": {[]string{"LOCKER_TTL=1ns"}, []string{"LOCKER_TTL: 1ns is below the minimum of 10ms"}},
		"address": {[]string{"LOCKER_REDIS_ADDR=redis://:" + secret + "@h"},
			[]string{"LOCKER_REDIS_ADDR: host:port expected, not a URL"}},
		"URL": {[]string{"LOCKER_URL=redis://u:" + secret + "@h/x?tttl=1", "LOCKER_TTL=1ns"},
			[]string{"LOCKER_URL: db: ", `LOCKER_URL: parameters: unknown parameter "tttl"`, "LOCKER_TTL: 1ns"}},
		"URL, escaping": {[]string{"LOCKER_URL=redis://u:x/" + secret + "@h"}, []string{"LOCKER_URL: address: "}},
		"two passwords": {[]string{"LOCKER_REDIS_PASSWORD=" + secret, "LOCKER_REDIS_PASSWORD_FILE=f"},
			[]string{"LOCKER_REDIS_PASSWORD_FILE: there is a password, too"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := redis(func(c *config.Config) { c.Redis.TLS = &config.TLS{CAFile: "ca"} })
			before := c.String()
			complains(t, c.Overlay(tt.environ), tt.want...)
			assert.Equal(t, before, c.String(), "unchanged")
		})
	}
}

func TestLoadWithEnvironment(t *testing.T) {
	path := file(t, "backend: redis", "ttl: 30s", "redis:", "  username: locker", "  addr: h")
	_, err := config.Load(path)
	complains(t, err, "locker.yaml: redis.password: missing, although there is a username")
	c, err := config.Load(path, "LOCKER_REDIS_PASSWORD="+secret, "LOCKER_TTL=5s")
	require.NoError(t, err)
	assert.Equal(t, secret, c.Redis.Password.Reveal())
	assert.Equal(t, 5*time.Second, time.Duration(c.TTL))

	path = file(t, "backend: redis", "tttl: 30s", "redis:", "  db: 1")
	_, err = config.Load(path, "LOCKER_REDIS_TMEOUT=1s", "LOCKER_TTL=1ns")
	complains(t, err, `locker.yaml:2: unknown field "tttl"`, "locker.yaml: redis.addr: address missing",
		"LOCKER_REDIS_TMEOUT", "LOCKER_TTL: 1ns")
}
