package config_test

import (
	"context"
	"crypto/tls"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/memory"
)

// vault is a backend with connections, as another module would register one.
type vault struct {
	Addrs        config.Addrs  `yaml:"addrs,omitempty" json:"addrs,omitempty" url:"-"`
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	TLS          *config.TLS   `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`

	credentials config.Credentials `yaml:"-" json:"-"`
}

// vaulted are the credentials with which the backend was opened last.
var vaulted config.Credentials

func init() {
	config.Register("xvault", config.Backend[vault]{
		Parse: func(s *vault, at config.Location, _ config.Report) { s.Addrs = config.Addrs{at.Host} },
		Check: func(s *vault, report config.Report) {
			if len(s.Addrs) > 3 {
				report("addrs", assert.AnError)
			}
		},
		Credentials: func(s *vault, f config.Credentials) { s.credentials = f },
		Open: func(_ context.Context, s *vault, _ string) (*locker.Client, error) {
			vaulted = s.credentials
			return memory.New(), nil
		},
	})
}

// A backend either uses the credentials of a program, and nothing else may say who the user is, or it refuses them.
func TestCredentialsOfABackendFromOutside(t *testing.T) {
	credentials := func(context.Context) (string, string, error) { return "locker", "token", nil }
	c, err := config.Parse("xvault://h:1")
	require.NoError(t, err)
	c.Credentials = credentials
	l, err := c.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NotNil(t, vaulted)
	_, password, _ := vaulted(t.Context())
	assert.Equal(t, "token", password)
	c.Credentials = nil
	l, err = c.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	assert.Nil(t, vaulted)

	const twice = ": there is a function for credentials, too: remove one of them"
	for url, want := range map[string][]string{
		"xvault://u@h":                  {"config: xvault.username" + twice},
		"xvault://:" + secret + "@h":    {"config: xvault.password" + twice},
		"xvault://h?password_file=/dev": {"config: xvault.password_file" + twice},
		"xshelf://h:1":                  {"config: Credentials: the backend xshelf does not call such a function"},
	} {
		c, err := config.Parse(url)
		require.NoError(t, err)
		c.Credentials = credentials
		complains(t, c.Validate(), want...)
		_, err = c.Open(t.Context())
		complains(t, err, want...)
	}
}

// Addresses are checked without code of the backend, which may have more to say.
func TestAddressesOfABackendFromOutside(t *testing.T) {
	t.Parallel()
	_, err := config.Parse("xvault://h:1")
	require.NoError(t, err)
	for _, good := range []config.Addrs{nil, {"h"}, {"h:1", "10.0.0.1", "[::1]:2"}, {"[::1]"}} {
		c := config.Config{Backend: "xvault", Sections: config.Sections{"xvault": &vault{Addrs: good}}}
		require.NoError(t, c.Validate(), "%v", good)
	}
	for addr, want := range map[string]string{
		"::1":          "not host:port: write an IPv6 address in brackets, as in [::1]",
		"::1:2379":     "not host:port: write an IPv6 address in brackets, as in [::1]",
		"[::1":         "not an IPv6 address in brackets, as in [::1]",
		"h:x":          "the port is not a number from 1 to 65535",
		"h:99999":      "the port is not a number from 1 to 65535",
		"h:0":          "the port is not a number from 1 to 65535",
		"h:":           "there is no port after the colon",
		":1":           "host missing, e.g. localhost",
		"h:1:1":        "not host:port",
		"h1,,h2":       "number 2: address missing, e.g. localhost",
		"h1,":          "number 2: address missing",
		"http://h:1":   "host:port expected, not a URL",
		"h:1,h:1":      "the same address twice",
		"h1;h2":        "separated by something else than commas",
		"user@h":       "the host has other characters than",
		"h1,h2,h3,h:0": "number 4: the port",
	} {
		c := config.Config{Backend: "xvault"}
		complains(t, c.Overlay([]string{"LOCKER_XVAULT_ADDRS=" + addr}), "config: LOCKER_XVAULT_ADDRS: "+want)
	}
	require.NoError(t, config.CheckAddr("[::1]:5432"))
	require.NoError(t, config.CheckAddr("h"))
	require.ErrorContains(t, config.CheckAddr("h1,h2"), "one address expected")
}

// A byte order mark, which editors write, is not a part of a password or a certificate.
func TestAByteOrderMarkIsNoPartOfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := redistest.Start(t)
	s.Cmd(t, "CONFIG", "SET", "requirepass", "p w")
	l := open(t, "redis://"+s.Addr()+"?password_file="+write(t, dir, "password", []byte("\ufeffp w\r\n")))
	steady.Unlock(t, steady.Lock(t, l, "k"))

	a := redistest.NewAuthority(t)
	ca := write(t, dir, "ca", append([]byte("\ufeff"), a.PEM()...))
	_, err := (&config.TLS{CAFile: ca}).Config()
	require.NoError(t, err)
}

// The functions for backends of other modules read the files again for each connection, and keep what they contained
// while they cannot be used.
func TestFilesOfABackendFromOutside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := config.PasswordFile(write(t, dir, "empty", nil))
	require.ErrorContains(t, err, "is empty")
	file := write(t, dir, "password", []byte("one\n"))
	password, err := config.PasswordFile(file)
	require.NoError(t, err)
	assert.Equal(t, "one", password())
	write(t, dir, "password", nil)
	assert.Equal(t, "one", password(), "the file is being replaced")
	require.NoError(t, os.Remove(file))
	assert.Equal(t, "one", password())
	write(t, dir, "password", []byte("two\r\n"))
	assert.Equal(t, "two", password())

	c := config.Config{Backend: "xvault", Sections: config.Sections{"xvault": &vault{
		Addrs: config.Addrs{"h"}, PasswordFile: dir + "/none", TLS: &config.TLS{CAFile: file},
	}}}
	wrong := []string{"config: xvault.password_file: file not found: ", "config: xvault.tls.ca_file: no PEM certificate"}
	_, err = c.Open(t.Context())
	complains(t, err, wrong...)
	_, err = c.Deployment(t.Context())
	complains(t, err, wrong...)

	var none *config.TLS
	get, err := none.Configs()
	require.NoError(t, err)
	require.Nil(t, get)
	_, err = (&config.TLS{CAFile: dir + "/none"}).Configs()
	require.ErrorContains(t, err, "tls.ca_file: file not found")
	a, b := redistest.NewAuthority(t), redistest.NewAuthority(t)
	cert, key := a.Issue(t, time.Hour)
	next, nextKey := b.Issue(t, time.Hour)
	get, err = (&config.TLS{
		CAFile: write(t, dir, "ca", a.PEM()), CertFile: write(t, dir, "cert", cert), KeyFile: write(t, dir, "key", key),
		MinVersion: "1.3",
	}).Configs()
	require.NoError(t, err)
	before := get()
	assert.Equal(t, uint16(tls.VersionTLS13), before.MinVersion)
	write(t, dir, "ca", nil)
	write(t, dir, "cert", next)
	half := get()
	assert.True(t, before.RootCAs.Equal(half.RootCAs), "the file is half written")
	assert.Equal(t, before.Certificates[0].Certificate, half.Certificates[0].Certificate, "the key does not belong to it")
	write(t, dir, "ca", b.PEM())
	write(t, dir, "key", nextKey)
	after := get()
	assert.False(t, before.RootCAs.Equal(after.RootCAs))
	assert.NotEqual(t, before.Certificates[0].Certificate, after.Certificates[0].Certificate)
}
