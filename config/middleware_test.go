package config_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
)

// allOfRetry has a value other than the default in each field.
var allOfRetry = config.Retry{
	For: config.Duration(30 * time.Second), BaseDelay: config.Duration(10 * time.Millisecond),
	MaxDelay: config.Duration(time.Second), PerSecond: 7, OnHeld: true,
}

func TestMiddlewareEverywhere(t *testing.T) {
	const inURL = "retry_for=30s&retry_base_delay=10ms&retry_max_delay=1s&retry_per_second=7&retry_on_held=true&log=info"
	redlock, err := config.Parse("redlock://a,b,c?" + inURL)
	require.NoError(t, err)
	assert.Equal(t, &allOfRetry, redlock.Retry)
	assert.Equal(t, "info", redlock.Log)

	want := &config.Config{Backend: "memory", Log: "info", Retry: &allOfRetry}
	for name, read := range map[string]func() (*config.Config, error){
		"URL":    func() (*config.Config, error) { return config.Parse("memory:?" + inURL) },
		"String": func() (*config.Config, error) { return config.Parse(want.String()) },
		"file": func() (*config.Config, error) {
			return config.Load(file(t, "backend: memory", "log: info",
				"retry: {for: 30s, base_delay: 10ms, max_delay: 1s, per_second: 7, on_held: true}"))
		},
		"environment": func() (*config.Config, error) {
			c := &config.Config{Backend: "memory"}
			return c, c.Overlay([]string{"LOCKER_LOG=info", "LOCKER_RETRY_FOR=30s", "LOCKER_RETRY_BASE_DELAY=10ms",
				"LOCKER_RETRY_MAX_DELAY=1s",
				"LOCKER_RETRY_PER_SECOND=7", "LOCKER_RETRY_ON_HELD=true"})
		},
		"both": func() (*config.Config, error) {
			return config.Load(file(t, "backend: memory", "retry: {for: 30s, per_second: 8, on_held: true}"),
				"LOCKER_RETRY=true", "LOCKER_RETRY_BASE_DELAY=10ms", "LOCKER_RETRY_MAX_DELAY=1s", "LOCKER_RETRY_PER_SECOND=7",
				"LOCKER_LOG=info")
		},
	} {
		c, err := read()
		if assert.NoError(t, err, name) {
			assert.Equal(t, want, c, name)
		}
	}
}

func TestRetrySwitch(t *testing.T) {
	for url, want := range map[string]*config.Retry{
		"memory:":                                  nil,
		"memory:?retry=true":                       {},
		"memory:?retry=false":                      nil,
		"memory:?retry_for=30s&retry=false":        nil,
		"memory:?retry=false&retry_for=30s":        {For: config.Duration(30 * time.Second)}, // in their order
		"memory:?retry=true&retry_per_second=1000": {PerSecond: 1000},
	} {
		c, err := config.Parse(url)
		require.NoError(t, err, url)
		assert.Equal(t, want, c.Retry, url)
		again, err := config.Parse(c.String())
		require.NoError(t, err, c.String())
		assert.Equal(t, c, again)
	}
	path := file(t, "backend: memory", "retry: {}")
	c, err := config.Load(path)
	require.NoError(t, err)
	assert.Equal(t, &config.Retry{}, c.Retry)
	c, err = config.Load(path, "LOCKER_RETRY_FOR=1s", "LOCKER_RETRY=0")
	require.NoError(t, err)
	assert.Nil(t, c.Retry, "the switch has the last word")
}

func TestMiddlewareFaults(t *testing.T) {
	for in, want := range map[string][]string{
		"memory:?log=inof": {`URL: log: unknown level "inof": did you mean info? ` +
			"(known: debug, info, warn)"},
		"memory:?log=error":              {`URL: log: unknown level "error"`},
		"memory:?log=" + secret + "%20x": {"URL: log: unknown level (known"},
		"memory:?log=":                   {"URL: log: empty"},
		"memory:?retry=yes":              {"URL: retry: neither true nor false"},
		"memory:?retry_for=30":           {"URL: retry_for: a number without a unit"},
		"memory:?retry_per_second=0":     {"URL: retry_per_second: must be more than 0"},
		"memory:?retry_per_second=-1":    {"URL: retry_per_second: not a whole number"},
		"memory:?retry_per_second=1.5":   {"URL: retry_per_second: not a whole number"},
		"memory:?retry_on_held=maybe":    {"URL: retry_on_held: neither"},
		"memory:?retry_base_delay=3s": {"URL: retry_base_delay: 3s is more than the longest pause of 2s: lower base_delay, " +
			"or raise max_delay"},
		"redis://h?retry_max_delay=1ms": {"URL: retry_max_delay: 1ms is less than the first pause of 50ms: " +
			"raise max_delay, or lower base_delay"},
		"redlock://h,i?retry_base_delay=3s&retry_max_delay=2ms": {"URL: retry_base_delay: 3s is more than"},
		"memory:?retry_fro=1s": {`unknown parameter "retry_fro": did you mean retry_for?`},
	} {
		_, err := config.Parse(in)
		complains(t, err, want...)
	}
	for lines, want := range map[string][]string{
		"backend: memory; retry: true": {"locker.yaml:2: retry: a section with fields is expected " +
			"here, or {} for the defaults"},
		"backend: memory; retry:": {"locker.yaml:2: retry: no value"},
		"backend: memory; retry:;   form: 1s": {`locker.yaml:3: retry: unknown field "form": did you mean for? ` +
			"(known: " + fieldsOfRetry + ")"},
		"backend: memory; log: 4; retry: {for: 1}": {"locker.yaml:2: log: unknown level",
			"locker.yaml:3: retry.for: a number without a unit"},
		"backend: memory; retry:;   per_second: [hello]": {"locker.yaml:3: retry.per_second: a single value"},
	} {
		_, err := config.Load(file(t, strings.Split(lines, "; ")...))
		complains(t, err, want...)
	}
	c := &config.Config{Backend: "memory"}
	complains(t, c.Overlay([]string{"LOCKER_RETRY_ATTEMPTS=3", "LOCKER_LOG=all", "LOCKER_RETYR=1"}),
		`"LOCKER_RETRY_ATTEMPTS" (known: LOCKER_RETRY_FOR, `, "LOCKER_LOG: unknown level",
		`"LOCKER_RETYR": did you mean LOCKER_RETRY?`)
	c.Retry = &config.Retry{PerSecond: 1}
	require.Error(t, c.Overlay([]string{"LOCKER_RETRY_PER_SECOND=2", "LOCKER_TTL=1"}))
	assert.Equal(t, 1, c.Retry.PerSecond, "an overlay that fails changes nothing")
	c.Retry = &config.Retry{For: -1, BaseDelay: -1, MaxDelay: -1, PerSecond: -1}
	complains(t, c.Validate(), "retry.for: negative", "retry.base_delay: negative", "retry.max_delay: negative",
		"retry.per_second: negative")
}

// traced counts the calls of Lock. The test registers it as a program registers its tracing.
type traced struct {
	locker.Locker
	calls *int
}

func (l traced) Unwrap() locker.Locker { return l.Locker }

func (l traced) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	*l.calls++
	return l.Locker.TryLock(ctx, key, opts...)
}

// TestTracing checks that tracing works if it is registered, and that it is around retry.
func TestTracing(t *testing.T) {
	_, err := config.Parse("memory:?tracing=true")
	complains(t, err, "URL: tracing: not linked in")
	_, err = config.Load(file(t, "backend: memory", "tracing: maybe"))
	complains(t, err, "locker.yaml:2: tracing: neither true nor false")

	calls := 0
	config.RegisterTracing(func() locker.Middleware {
		return func(next locker.Locker) locker.Locker { return traced{next, &calls} }
	})
	defer config.ForgetTracing()
	assert.Panics(t, func() { config.RegisterTracing(nil) })
	for _, read := range []func() (*config.Config, error){
		func() (*config.Config, error) { return config.Parse("redis+xflaky://h?tracing=true&retry=true") },
		func() (*config.Config, error) {
			return config.Load(file(t, "backend: redis", "redis: {addr: h, driver: xflaky}", "tracing: true",
				"retry: {}"))
		},
		func() (*config.Config, error) {
			return config.Load(file(t, "backend: redis", "redis: {addr: h, driver: xflaky}", "retry: {}"),
				"LOCKER_TRACING=true")
		},
	} {
		c, err := read()
		require.NoError(t, err)
		again, err := config.Parse(c.String())
		require.NoError(t, err)
		assert.True(t, again.Tracing, c.String())
		l, err := c.Open(t.Context(), locker.NoRenewal())
		require.NoError(t, err)
		closeLater(t, l)
		refusals.Store(2)
		calls = 0
		_, err = l.TryLock(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 1, calls)
	}
}

// flaky refuses the given number of attempts, and always the look at the server's settings.
type flaky struct{ refusals *atomic.Int32 }

func (f flaky) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if cmds[0][0] == "TIME" || f.refusals.Add(-1) >= 0 {
		return nil, drivers.NotSent(errors.New("connection refused"))
	}
	return []drivers.Reply{int64(1)}, nil
}

func (f flaky) Close() error { return nil }

var refusals atomic.Int32

func init() {
	drivers.Register("xflaky",
		func(context.Context, drivers.Config) (drivers.Driver, error) { return flaky{&refusals}, nil })
}

func TestMiddlewareIsPutAround(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))

	try := func(query string) error {
		refusals.Store(3)
		_, err := open(t, "redis+xflaky://h"+query, locker.NoRenewal(), locker.TTL(time.Minute)).TryLock(t.Context(),
			"k")
		return err
	}
	require.ErrorIs(t, try(""), locker.ErrUnavailable)
	require.Empty(t, log.String())

	require.ErrorIs(t, try("?log=warn"), locker.ErrUnavailable)
	assert.Contains(t, log.String(), `level=WARN msg="lock store unavailable"`)
	assert.NotContains(t, log.String(), "DEBUG")

	log.Reset()
	require.NoError(t, try("?retry=true&log=debug"))
	assert.Equal(t, 3, strings.Count(log.String(), "lock not acquired"), "every attempt is seen: %s", log.String())
	assert.Contains(t, log.String(), `msg="lock acquired"`)

	require.ErrorIs(t, try("?retry_for=1ms"), locker.ErrUnavailable, "the fields arrive")
	assert.ErrorContains(t, try("?retry_base_delay=1ms&retry_max_delay=1h&retry_per_second=1&retry_for=1500ms"),
		" tries in 1.",
		"the second retry waited for its turn")
}

// A program with the setting has an audit log, whose store has the name that all programs have for it.
func TestAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	stores := map[string]string{
		"redis+xflaky://u:" + secret + "@h?timeout=1s": "redis://h:6379?prefix=lock%3A",
		"redis+xflaky://h:6379/2?prefix=":              "redis://h:6379/2?prefix=",
		"redlock+xflaky://a,b,c":                       "redlock://a:6379,b:6379,c:6379?prefix=lock%3A",
		"redis+xflaky://localhost":                     "redis://localhost:6379?prefix=lock%3A#",
		"memory:":                                      "memory://?prefix=lock%3A#",
	}
	for url, store := range stores {
		require.NoError(t, os.RemoveAll(path))
		sign := "?"
		if strings.Contains(url, "?") {
			sign = "&"
		}
		c, err := config.Parse(url + sign + "audit=" + path + "&audit_hash_keys=true")
		require.NoError(t, err)
		again, err := config.Parse(strings.ReplaceAll(c.String(), "***", secret))
		if err == nil {
			assert.Equal(t, path, again.Audit)
		}
		l, err := c.Open(t.Context(), locker.NoRenewal())
		require.NoError(t, err)
		refusals.Store(0)
		_, _ = l.TryLock(t.Context(), "orders")
		require.NoError(t, l.Close())
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.NotContains(t, string(text), secret)
		assert.NotContains(t, string(text), "orders")
		assert.Contains(t, string(text), `"store":"`+store)
		assert.Contains(t, string(text), `"event":"close"`)
	}
	file := file(t, "backend: memory", "audit: "+path)
	c, err := config.Load(file, "LOCKER_AUDIT_HASH_KEYS=true")
	require.NoError(t, err)
	assert.True(t, c.AuditHashKeys && c.Audit == path)
	_, err = config.Parse("memory:?audit_hash_keys=true")
	complains(t, err, "audit_hash_keys: has no effect without audit")
	c = &config.Config{Backend: "memory", Audit: filepath.Join(path, "no")}
	_, err = c.Open(t.Context())
	assert.ErrorContains(t, err, "config: audit: ")
}
