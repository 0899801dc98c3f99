package config_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/servers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
)

// open opens url and closes the Locker when the test ends.
func open(t *testing.T, url string, opts ...locker.Option) *config.Opened {
	t.Helper()
	l, err := config.Open(t.Context(), url, opts...)
	require.NoError(t, err)
	closeLater(t, l)
	return l
}

func closeLater(t *testing.T, l *config.Opened) {
	t.Helper()
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
}

func TestMemoryIsSharedInTheProcess(t *testing.T) {
	a, b, other := open(t, "memory:"), open(t, "memory:?prefix=lock:&ttl=1m"), open(t, "memory:?prefix=other:")
	lease := steady.Lock(t, a, t.Name())
	_, err := b.TryLock(t.Context(), t.Name())
	assert.ErrorIs(t, err, locker.ErrHeld)
	steady.Unlock(t, steady.Lock(t, other, t.Name()))
	steady.Unlock(t, lease)
	steady.Unlock(t, steady.Lock(t, b, t.Name()))
}

func TestWhichTTLWins(t *testing.T) {
	minutes := func(l locker.Locker, opts ...locker.Option) int {
		lease := steady.Lock(t, l, t.Name(), opts...)
		defer steady.Unlock(t, lease)
		return int(time.Until(lease.Until()).Round(time.Minute).Minutes())
	}
	program := locker.TTL(20 * time.Minute)
	assert.Equal(t, 0, minutes(open(t, "memory:")), "the default of 10 s")
	assert.Equal(t, 20, minutes(open(t, "memory:", program)), "the program's default")
	assert.Equal(t, 30, minutes(open(t, "memory:?ttl=30m", program)), "the configuration over the program's default")
	assert.Equal(t, 40, minutes(open(t, "memory:?ttl=30m", program), locker.TTL(40*time.Minute)),
		"the call over everything")
}

// recorder is a driver that records the configuration it was opened with.
var recorded drivers.Config

func init() {
	drivers.Register("xrecorder", func(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
		recorded = cfg
		return recorder{}, nil
	})
}

type recorder struct{}

func (recorder) Do(context.Context, ...drivers.Command) ([]drivers.Reply, error) {
	panic("Open sends nothing")
}
func (recorder) Close() error { return nil }

func TestWhatADriverGets(t *testing.T) {
	pw := filepath.Join(t.TempDir(), "pw")
	require.NoError(t, os.WriteFile(pw, []byte(" "+secret+" \r\n"), 0o600))
	for url, want := range map[string]drivers.Config{
		"redis+xrecorder://h": {Network: "tcp", Addr: "h:6379", Timeout: drivers.DefaultTimeout},
		"redis+xrecorder://u:p@h:1/2?timeout=2s": {Network: "tcp", Addr: "h:1", Username: "u", Password: "p", DB: 2,
			Timeout: 2 * time.Second},
		"unix+xrecorder:///r.sock?db=3": {Network: "unix", Addr: "/r.sock", DB: 3,
			Timeout: drivers.DefaultTimeout},
	} {
		open(t, url)
		assert.Equal(t, want, recorded, url)
	}
	open(t, "redis+xrecorder://u@h?password_file="+pw)
	username, password, err := recorded.Login(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"u", " " + secret + " "}, []string{username, password})
	open(t, "rediss+xrecorder://[::1]")
	assert.Equal(t, "::1", recorded.TLS.ServerName)
	assert.Nil(t, recorded.TLS.RootCAs, "the system's")
	open(t, "rediss+xrecorder://h?tls_server_name=n")
	assert.Equal(t, "n", recorded.TLS.ServerName)
	assert.EqualValues(t, tls.VersionTLS12, recorded.TLS.MinVersion)
	open(t, "rediss+xrecorder://h?tls_min_version=1.3")
	assert.EqualValues(t, tls.VersionTLS13, recorded.GetTLS().MinVersion)
}

func TestFilesAtOpen(t *testing.T) {
	dir := t.TempDir()
	empty, text := filepath.Join(dir, "empty"), filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	require.NoError(t, os.WriteFile(text, []byte(secret), 0o600))
	for url, want := range map[string][]string{
		"redis://h?password_file=/no/such": {"redis.password_file: file not " +
			"found: /no/such"},
		"redis://h?password_file=" + empty: {"redis.password_file: " + empty + " is empty"},
		"rediss://h?password_file=/no/such&tls_ca_file=/nor/this": {"file not found: /no/such",
			"redis.tls.ca_file: file not found: /nor/this"},
		"rediss://h?tls_ca_file=" + text: {"redis.tls.ca_file: no PEM " +
			"certificate in " + text},
		"rediss://h?tls_cert_file=" + text + "&tls_key_file=" + text: {"redis.tls.cert_file, " +
			"key_file: no PEM certificate in " + text},
		"rediss://h?tls_ca_file=/no&tls_cert_file=/no/cert&tls_key_file=/no/key": {"ca_file",
			"file not found: /no/cert"},
	} {
		_, err := config.Open(t.Context(), url)
		complains(t, err, want...)
	}
}

// TestDown checks that Open succeeds without a server, and that the first call for a lock reports the error.
func TestDown(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	for _, driver := range []string{"goredis", "redigo", "rueidis"} {
		t.Run(driver, func(t *testing.T) {
			l := open(t, "redis+"+driver+"://:"+secret+"@"+s.Addr())
			_, err := l.TryLock(t.Context(), "k")
			require.ErrorIs(t, err, locker.ErrUnavailable)
			assert.ErrorContains(t, err, s.Addr())
			assert.NotContains(t, err.Error(), secret)
		})
	}
}

func TestRedis(t *testing.T) {
	plain := redistest.Start(t, "--requirepass", "p@ss")
	encrypted, _ := redistest.StartTLS(t)
	pw := filepath.Join(t.TempDir(), "pw")
	require.NoError(t, os.WriteFile(pw, []byte("p@ss\n"), 0o600))
	for _, driver := range []string{"goredis", "redigo", "rueidis"} {
		t.Run(driver, func(t *testing.T) {
			for name, url := range map[string]string{
				"password":      "redis+" + driver + "://:p%40ss@" + plain.Addr() + "/1",
				"password file": "redis+" + driver + "://default@" + plain.Addr() + "?db=1&password_file=" + pw,
				"socket":        "unix+" + driver + "://:p%40ss@" + plain.Socket() + "?db=1",
				"TLS":           "rediss+" + driver + "://" + encrypted.Addr() + "?tls_ca_file=" + encrypted.CAFile(),
			} {
				t.Run(name, func(t *testing.T) {
					l := open(t, url)
					lease := steady.Lock(t, l, "k")
					_, err := l.TryLock(t.Context(), "k")
					assert.ErrorIs(t, err, locker.ErrHeld)
					steady.Unlock(t, lease)
				})
			}

			// Lockers that reach the same server and database in different ways exclude each other.
			a, b := open(t, "redis+"+driver+"://:p%40ss@"+plain.Addr()+"/1"),
				open(t, "unix+"+driver+"://:p%40ss@"+plain.Socket()+"?db=1")
			elsewhere := open(t, "unix+"+driver+"://:p%40ss@"+plain.Socket()+"?db=2")
			lease := steady.Lock(t, a, "k")
			_, err := b.TryLock(t.Context(), "k")
			assert.ErrorIs(t, err, locker.ErrHeld)
			steady.Unlock(t, steady.Lock(t, elsewhere, "k"))
			steady.Unlock(t, lease)

			for name, url := range map[string]string{
				"wrong password": "redis+" + driver + "://:" + secret + "@" + plain.Addr(),
				"no password":    "redis+" + driver + "://" + plain.Addr(),
				"unknown CA":     "rediss+" + driver + "://" + encrypted.Addr(),
				"wrong name": "rediss+" + driver + "://" + encrypted.Addr() +
					"?tls_server_name=example.com&tls_ca_file=" + encrypted.CAFile(),
				"no TLS": "redis+" + driver + "://" + encrypted.Addr() + "?timeout=1s",
			} {
				_, err := open(t, url).TryLock(t.Context(), "k")
				assert.ErrorIs(t, err, locker.ErrUnavailable, name)
				if err != nil {
					assert.NotContains(t, err.Error(), secret)
				}
			}
		})
	}
}

// Several locks are acquired in one step, with and without middleware.
func TestLocksAreAcquiredInOneStep(t *testing.T) {
	for _, url := range []string{"memory:", "memory:?retry=true&log=info&ttl=1m"} {
		attempts := 0
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Attempted: func(lockertrace.Attempt) { attempts++ }})
		lease, err := locker.LockAll(ctx, open(t, url), []string{t.Name() + "a", t.Name() + "b"})
		require.NoError(t, err, url)
		assert.Equal(t, 1, attempts, url)
		steady.Unlock(t, lease)
	}
}

// The logger of a configuration takes the warnings of the backend, those about the servers, and what log switches on.
func TestLogger(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	for url, want := range map[string]string{
		"redis://" + a.Addr():                    "",
		"redlock://" + a.Addr() + "," + b.Addr(): "fewer than three nodes",
	} {
		c, err := config.Parse(url + "?log=debug")
		require.NoError(t, err)
		log := redistest.NewLog()
		c.Logger = log.Logger
		l, err := c.Open(t.Context())
		require.NoError(t, err)
		assert.Eventually(t, func() bool { return strings.Contains(log.String(), "append-only file is off") },
			20*time.Second, 5*time.Millisecond)
		steady.Unlock(t, steady.Lock(t, l, "k"))
		assert.Contains(t, log.String(), want)
		assert.Contains(t, log.String(), `msg="lock acquired"`)
		require.NoError(t, l.Close())
		assert.Equal(t, url+"?log=debug", c.String(), "a logger is no setting")
	}
}

// New servers rest. After Bootstrap they grant locks at once, with the longest TTL that the guard allows.
func TestGuard(t *testing.T) {
	a, b, c := redistest.Start(t), redistest.Start(t), redistest.Start(t)
	for _, url := range []string{
		"redis://" + a.Addr() + "?guard=30s&prefix=one:",
		"redlock://" + a.Addr() + "," + b.Addr() + "," + c.Addr() + "?guard=30s&prefix=three:&budget=20s",
	} {
		cfg, err := config.Parse(url)
		require.NoError(t, err)
		l, err := cfg.Open(t.Context())
		require.NoError(t, err)
		closeLater(t, l)
		_, err = l.TryLock(t.Context(), "k")
		require.ErrorIs(t, err, locker.ErrUnavailable)
		require.ErrorContains(t, err, "rests for another")

		d, err := servers.Of(t.Context(), cfg)
		require.NoError(t, err)
		assert.Equal(t, 30*time.Second, d.Guard)
		require.NoError(t, d.Bootstrap(t.Context()))
		require.NoError(t, d.Close())
		steady.Unlock(t, steady.Lock(t, l, "k", locker.TTL(30*time.Second)))
		_, err = l.TryLock(t.Context(), "k", locker.TTL(31*time.Second))
		require.ErrorIs(t, err, locker.ErrInvalid)
	}
}

func TestBootstrapNeedsAGuard(t *testing.T) {
	for _, url := range []string{"redis://h", "redlock://h,i,j", "memory:"} {
		cfg, err := config.Parse(url)
		require.NoError(t, err)
		d, err := servers.Of(t.Context(), cfg)
		require.NoError(t, err)
		assert.ErrorIs(t, d.Bootstrap(t.Context()), locker.ErrInvalid)
		require.NoError(t, d.Close())
	}
}

// The time-outs of the clients leave room for that of the replicas.
func TestReplicas(t *testing.T) {
	s := redistest.Start(t)
	for _, name := range []string{"goredis", "redigo", "rueidis"} {
		l := open(t, "redis://"+s.Addr()+"?driver="+name+"&replicas=2&replicas_timeout=900ms&timeout=500ms")
		var e *locker.NotReplicatedError
		var start time.Time
		require.Eventually(t, func() bool { // a stall may be longer than the time-outs
			start = time.Now()
			_, err := l.TryLock(t.Context(), "k")
			return errors.As(err, &e)
		}, time.Minute, time.Millisecond, name)
		assert.Equal(t, locker.NotReplicatedError{Got: 0, Want: 2}, *e)
		assert.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond)
	}
}

// clustered is a driver for several servers.
type clustered struct{ drivers.Driver }

func (clustered) Cluster()     {}
func (clustered) Close() error { return nil }

func init() {
	drivers.Register("xclustered", func(context.Context, drivers.Config) (drivers.Driver, error) {
		return clustered{}, nil
	})
}

// Behind a cluster, replicas are refused when the locks are opened.
func TestReplicasOfACluster(t *testing.T) {
	_, err := config.Open(t.Context(), "redis://h?driver=xclustered&replicas=1")
	require.ErrorContains(t, err, "WAIT is not supported behind a cluster")
	open(t, "redis://h?driver=xclustered")
}
