package config_test

import (
	"context"
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

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
)

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
