package config_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/redis/servers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
)

// write writes a file of a directory, and returns its path.
func write(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func TestTLSFilesThatCannotBeUsedAreExplained(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := redistest.NewAuthority(t)
	cert, key := a.Issue(t, time.Hour)
	old, oldKey := a.Issue(t, -time.Minute)
	_, otherKey := a.Issue(t, time.Hour)
	file := func(name string, content ...[]byte) string { return write(t, dir, name, bytes.Join(content, nil)) }
	good, goodKey := file("cert", cert), file("key", key)
	expired, text := file("expired", old), file("text", []byte(secret))
	begun := file("begun", a.PEM(), cert[:len(cert)/2])
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir"), 0o700))

	const ca, pair = "config: redis.tls.ca_file: ", "config: redis.tls.cert_file, key_file: "
	of := func(cert, key string) string { return "tls_cert_file=" + cert + "&tls_key_file=" + key }
	for query, want := range map[string]string{
		"tls_ca_file=" + filepath.Join(dir, "none"): ca + "file not found: " + filepath.Join(dir, "none"),
		"tls_ca_file=" + filepath.Join(dir, "dir"):  "is a directory",
		"tls_ca_file=" + text:                       ca + "no PEM certificate in " + text,
		"tls_ca_file=" + goodKey:                    ca + "no PEM certificate in " + goodKey,
		"tls_ca_file=" + expired:                    ca + "the certificate in " + expired + " expired on 20",
		"tls_ca_file=" + begun:                      ca + begun + " is incomplete: its last PEM block does not end",
		of(text, goodKey):                           pair + "no PEM certificate in " + text,
		of(good, text):                              pair + "no PEM key in " + text,
		of(begun, goodKey):                          pair + begun + " is incomplete",
		of(good, file("other", otherKey)): pair + good + " and " + filepath.Join(dir, "other") +
			": tls: private key does not match public key",
		of(expired, file("oldkey", oldKey)): pair + "the certificate in " + expired + " expired on 20",
	} {
		c, err := config.Parse("rediss://h?" + query)
		require.NoError(t, err)
		_, err = servers.Of(t.Context(), c)
		complains(t, err, want)
	}
	c, err := config.Parse("rediss://h?" + of(good, goodKey) + "&tls_ca_file=" + file("bundle", old, a.PEM()))
	require.NoError(t, err)
	d, err := servers.Of(t.Context(), c)
	require.NoError(t, err, "one of the authorities is not expired")
	require.NoError(t, d.Close())
}

func TestTLSMinVersion(t *testing.T) {
	t.Parallel()
	_, err := config.Parse("rediss://h?tls_min_version=1.1")
	complains(t, err, "config: URL: tls_min_version: unknown version of TLS: give 1.2 or 1.3")
	_, err = config.Parse("redis://h?tls_min_version=1.3")
	complains(t, err, "only with rediss://")
	for _, value := range []string{`1.3`, `"1.3"`} {
		c, err := config.Load(file(t, "backend: redis", "redis: {addr: h, tls: {min_version: "+value+"}}"))
		require.NoError(t, err)
		assert.Equal(t, "1.3", c.Redis.TLS.MinVersion)
	}
	var c config.Config
	require.NoError(t, c.Overlay([]string{"LOCKER_URL=rediss://h", "LOCKER_REDIS_TLS_MIN_VERSION=1.3"}))
	assert.Equal(t, "1.3", c.Redis.TLS.MinVersion)

	s, _ := redistest.StartTLS(t, "--tls-protocols", "TLSv1.2")
	for version, ok := range map[string]bool{"1.2": true, "1.3": false} {
		_, err := open(t, "rediss://"+s.Addr()+"?tls_ca_file="+s.CAFile()+"&tls_min_version="+version).
			TryLock(t.Context(), "k"+version)
		assert.Equal(t, ok, err == nil, "%v", err)
	}
}

func TestMinVersionOfANode(t *testing.T) {
	t.Parallel()
	c, err := config.Load(file(t, "backend: redlock", "redlock:", "  driver: xrecorder", "  tls: {min_version: 1.3}",
		"  nodes: [{addr: a, tls: {server_name: n}}]"))
	require.NoError(t, err)
	d, err := servers.Of(t.Context(), c)
	require.NoError(t, err)
	defer d.Close()
	assert.Equal(t, "n", d.Servers[0].Dial.TLS.ServerName)
	assert.EqualValues(t, 0x0304, d.Servers[0].Dial.TLS.MinVersion)
}

// TestFilesThatCannotBeReadAgainAreLogged checks that the last good values are used, and that the log says so once.
func TestFilesThatCannotBeReadAgainAreLogged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := redistest.NewAuthority(t), redistest.NewAuthority(t)
	cert, key := a.Issue(t, time.Hour)
	next, nextKey := b.Issue(t, time.Hour)
	certFile, keyFile := write(t, dir, "cert", cert), write(t, dir, "key", key)
	ca, pw := write(t, dir, "ca", a.PEM()), write(t, dir, "pw", []byte("first"))
	var log bytes.Buffer
	c := config.Config{Backend: "redis", Logger: slog.New(slog.NewTextHandler(&log, nil)), Redis: config.Redis{
		Addr: "h", PasswordFile: pw, TLS: &config.TLS{CAFile: ca, CertFile: certFile, KeyFile: keyFile},
	}}
	d, err := servers.Of(t.Context(), &c)
	require.NoError(t, err)
	defer d.Close()
	dial := d.Servers[0].Dial
	before := dial.GetTLS()

	write(t, dir, "ca", a.PEM()[:100])
	write(t, dir, "cert", next) // and the key is not there yet
	for range 3 {
		now := dial.GetTLS()
		assert.True(t, before.RootCAs.Equal(now.RootCAs))
		assert.Equal(t, before.Certificates[0].Certificate, now.Certificates[0].Certificate)
	}
	assert.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	assert.Contains(t, log.String(), "setting=redis.tls.ca_file error=\"no PEM certificate in "+ca)
	assert.Contains(t, log.String(), "private key does not match public key")
	assert.False(t, dial.GetTLS().InsecureSkipVerify)

	write(t, dir, "ca", b.PEM())
	write(t, dir, "key", nextKey)
	assert.False(t, before.RootCAs.Equal(dial.GetTLS().RootCAs))
	assert.NotEqual(t, before.Certificates[0].Certificate, dial.GetTLS().Certificates[0].Certificate)
}

// TestCredentialsOfAProgram checks that all nodes get the credentials of Config.Credentials, and that nothing else may
// say who the user is.
func TestCredentialsOfAProgram(t *testing.T) {
	t.Parallel()
	credentials := func(context.Context) (string, string, error) { return "locker", "token", nil }
	s := redistest.Start(t)
	s.User(t, "locker", "on", ">token", "~*", "+@all")
	s.Cmd(t, "ACL", "SETUSER", "default", "off")
	for _, scheme := range []string{"redis", "redlock"} {
		c, err := config.Parse(scheme + "://" + s.Addr())
		require.NoError(t, err)
		c.Credentials = credentials
		l, err := c.Open(t.Context())
		require.NoError(t, err)
		closeLater(t, l)
		steady.Unlock(t, steady.Lock(t, l, "k"))
		assert.NotContains(t, c.String(), "token")
	}
	other, _ := config.Parse("memory:")
	other.Credentials = credentials
	require.NoError(t, other.Validate(), "a backend without servers ignores them")
	for url, path := range map[string]string{
		"redis://u:p@h": "redis.password", "redis://h?password_file=p": "redis.password_file",
		"redlock://u:p@h": "redlock.password",
	} {
		c, err := config.Parse(url)
		require.NoError(t, err)
		c.Credentials = credentials
		complains(t, c.Validate(), "config: "+path+": there is a function for credentials, too: remove one of them")
	}
}

func TestCredentialsOfAProgramAndOfANode(t *testing.T) {
	c := quorum(func(r *config.Redlock) { r.Nodes[1].Password = "p" }, "a", "b", "c")
	c.Credentials = func(context.Context) (string, string, error) { return "", "", nil }
	complains(t, c.Validate(), "config: redlock.nodes[1].password: there is a function for credentials, too")
}
