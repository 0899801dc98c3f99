package drivers

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// opened records the configuration that was passed to an OpenFunc.
type opened struct {
	Driver
	name string
	cfg  Config
}

// with registers drivers of the given names, and no others, for the duration of one test.
func with(t *testing.T, names ...string) {
	t.Helper()
	before := registry.drivers
	registry.drivers = nil
	t.Cleanup(func() { registry.drivers = before })
	for _, name := range names {
		Register(name, func(_ context.Context, cfg Config) (Driver, error) { return opened{name: name, cfg: cfg}, nil })
	}
}

func TestOpenByName(t *testing.T) {
	with(t, "b", "a")
	assert.Equal(t, []string{"a", "b"}, Names())
	d, err := Open(t.Context(), "b", Config{Network: "tcp", Addr: "host:1", Timeout: time.Second})
	require.NoError(t, err)
	assert.Equal(t, opened{name: "b", cfg: Config{Network: "tcp", Addr: "host:1", Timeout: time.Second}}, d)
}

func TestOpenFillsInTheTimeoutAndTheNetwork(t *testing.T) {
	with(t, "a")
	d, err := Open(t.Context(), "a", Config{})
	require.NoError(t, err)
	assert.Equal(t, DefaultTimeout, d.(opened).cfg.Timeout)
	assert.Equal(t, "tcp", d.(opened).cfg.Network)
}

func TestOpenWithoutAName(t *testing.T) {
	for _, c := range []struct {
		registered []string
		want       string
	}{
		{[]string{"only"}, "only"},
		{[]string{"a", "goredis", "z"}, "goredis"},
	} {
		with(t, c.registered...)
		d, err := Open(t.Context(), "", Config{})
		require.NoError(t, err)
		assert.Equal(t, c.want, d.(opened).name)
	}
	with(t, "b", "a")
	_, err := Open(t.Context(), "", Config{})
	require.EqualError(t, err, "several Redis drivers are registered (a, b): name one")
}

func TestOpenUnknown(t *testing.T) {
	with(t, "b", "a")
	_, err := Open(t.Context(), "c", Config{})
	require.ErrorContains(t, err, `unknown Redis driver "c" (registered: a, b)`)
	require.ErrorContains(t, err, `import _ "github.com/golocker/locker/drivers/all"`)
	_, err = Open(t.Context(), "valkey", Config{})
	require.ErrorContains(t, err, `import _ "github.com/golocker/locker/drivers/valkeydriver"`)
	with(t)
	assert.Empty(t, Names())
	for _, name := range []string{"", "goredis"} {
		_, err = Open(t.Context(), name, Config{})
		require.ErrorContains(t, err, "no Redis driver is registered: import _")
	}
}

func TestOpenPassesErrorsOn(t *testing.T) {
	with(t)
	Register("broken", func(context.Context, Config) (Driver, error) { return nil, io.EOF })
	_, err := Open(t.Context(), "broken", Config{})
	require.ErrorIs(t, err, io.EOF)
}

func TestRegisterPanics(t *testing.T) {
	with(t, "taken")
	open := func(context.Context, Config) (Driver, error) { return nil, nil }
	assert.PanicsWithValue(t, "drivers: Register called twice for driver taken", func() { Register("taken", open) })
	assert.Panics(t, func() { Register("", open) })
	assert.Panics(t, func() { Register("new", nil) })
	assert.Equal(t, []string{"taken"}, Names(), "the registry survives")
	Register("new", open)
}

// An OpenFunc that was written for standalone servers is never called with anything else: it would dial an empty
// address, or the sentinels as if they were the master.
func TestADriverGetsOnlyWhatItReaches(t *testing.T) {
	sentinel := Config{Sentinel: &Sentinel{Master: "m", Addrs: []string{"s:26379"}}}
	cluster := Config{Cluster: []string{"a:1", "b:1"}}
	with(t, "old")
	open := func(_ context.Context, cfg Config) (Driver, error) { return opened{name: "new", cfg: cfg}, nil }
	Register("new", open, SentinelMaster, RedisCluster)
	Register("half", open, SentinelMaster)

	for _, cfg := range []Config{sentinel, cluster} {
		_, err := Open(t.Context(), "old", cfg)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		assert.Equal(t, err, Check("old", cfg.Topology()))
		d, err := Open(t.Context(), "new", cfg)
		require.NoError(t, err)
		assert.Equal(t, cfg.Topology(), d.(opened).cfg.Topology())
	}
	_, err := Open(t.Context(), "old", sentinel)
	require.ErrorContains(t, err, "driver old reaches standalone servers, not Sentinel deployments: use half or new")
	_, err = Open(t.Context(), "half", cluster)
	require.ErrorContains(t, err,
		"driver half reaches standalone servers and Sentinel deployments, not clusters: use new")
	d, err := Open(t.Context(), "", cluster)
	require.NoError(t, err, "the only one that can")
	assert.Equal(t, "new", d.(opened).name)
	_, err = Open(t.Context(), "", sentinel)
	require.ErrorContains(t, err, "several Redis drivers are registered (half, new)")
}

func TestNoDriverReachesTheDeployment(t *testing.T) {
	with(t, "goredis")
	cluster := Config{Cluster: []string{"a:1"}}
	_, err := Open(t.Context(), "", cluster)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "no registered driver reaches clusters (registered: goredis)")
	_, err = Open(t.Context(), "goredis", cluster)
	require.ErrorContains(t, err, "no registered driver reaches clusters")
}

func TestOpenRefusesAConfigThatDescribesNoDeployment(t *testing.T) {
	with(t)
	Register("any", func(context.Context, Config) (Driver, error) { return nil, errors.New("called") },
		SentinelMaster, RedisCluster)
	some := &Sentinel{Master: "m", Addrs: []string{"s:1"}}
	for want, cfg := range map[string]Config{
		"not by both":                {Sentinel: some, Cluster: []string{"a:1"}},
		"remove one of them":         {Sentinel: some, Addr: "a:1"},
		"only database 0":            {Cluster: []string{"a:1"}, DB: 1},
		"a GetTLS and no TLS":        {Addr: "a:1", GetTLS: func() *tls.Config { return nil }},
		"the address of a sentinel":  {Sentinel: &Sentinel{Master: "m"}},
		"the name of the master and": {Sentinel: &Sentinel{Addrs: []string{"s:1"}}},
	} {
		_, err := Open(t.Context(), "any", cfg)
		assert.ErrorContains(t, err, want)
	}
}

func TestServersOfADeployment(t *testing.T) {
	c := Config{
		Sentinel: &Sentinel{Master: "m", Addrs: []string{"s:1"}, Username: "su", Password: "sp"},
		Username: "u", Password: "p", DB: 3, Timeout: 7,
	}
	assert.Equal(t, Config{Network: "tcp", Addr: "a:1", Username: "u", Password: "p", DB: 3, Timeout: 7}, c.At("a:1"))
	assert.Equal(t, Config{Network: "tcp", Addr: "s:1", Username: "su", Password: "sp", Timeout: 7},
		c.atSentinel("s:1"))
	assert.Equal(t, "u", c.Username, "c itself is unchanged")
	c.Credentials = func(context.Context) (string, string, error) { return "u", "p", nil }
	c.GetTLS = func() *tls.Config { return new(tls.Config) }
	username, _, err := c.atSentinel("s:1").Login(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "su", username, "the sentinels do not learn the password of the master")
	assert.Nil(t, c.atSentinel("s:1").GetTLS)
	assert.Equal(t, Config{Network: "tcp", Addr: "a:1"}, Config{Cluster: []string{"b:1"}}.At("a:1"))
}
