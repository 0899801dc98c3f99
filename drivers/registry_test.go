package drivers

import (
	"context"
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
	require.ErrorContains(t, err, `import _ "github.com/golocker/locker/drivers/valkey"`)
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
