package nats_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/natstest"
)

// The same store by a URL, in a file and in the environment, with a user. A lock of one is held for the others.
func TestThreeWays(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, "--user", "alice", "--pass", "hunter2")
	dir := t.TempDir()
	file, password := filepath.Join(dir, "locker.yaml"), filepath.Join(dir, "password")
	for path, text := range map[string]string{
		password: "hunter2\n",
		file: "backend: nats\nttl: 5s\nprefix: 'app:'\nnats:\n  addrs: " + s.Addr() +
			"\n  username: alice\n  password_file: " + password + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inFile, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	inEnv := new(config.Config)
	err = inEnv.Overlay([]string{
		"LOCKER_BACKEND=nats", "LOCKER_NATS_ADDRS=" + s.Addr(), "LOCKER_NATS_USERNAME=alice",
		"LOCKER_NATS_PASSWORD=hunter2", "LOCKER_PREFIX=app:",
	})
	if err != nil {
		t.Fatal(err)
	}
	inURL, err := config.Parse("nats://alice:hunter2@" + s.Addr() + "?prefix=app:&timeout=2s")
	if err != nil {
		t.Fatal(err)
	}
	var lease locker.Lease
	for way, c := range map[string]*config.Config{"file": inFile, "environment": inEnv, "URL": inURL} {
		if text := c.String(); strings.Contains(text, "hunter2") {
			t.Errorf("%s: the password is in %s", way, text)
		}
		l, err := c.Open(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		defer l.Close()
		got, err := l.TryLock(t.Context(), "k", locker.TTL(time.Minute))
		switch {
		case lease == nil && err == nil:
			lease = got
		case lease == nil:
			t.Fatalf("%s: %v", way, err)
		case !errors.Is(err, locker.ErrHeld):
			t.Errorf("%s: %v, expected to find the lock held", way, err)
		}
	}
	wrong, err := config.Parse("nats://alice:wrong@" + s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	l, err := wrong.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "Authorization Violation") {
		t.Errorf("with a wrong password: %v", err)
	}
}

func TestMistakes(t *testing.T) {
	for url, want := range map[string]string{
		"nats://":                           "addrs: missing",
		"nats://h1,,h2":                     "addrs: not host:port",
		"nats://h1/bucket":                  "?bucket=locks",
		"nats://h1?bucket=a.b":              "bucket: letters, digits",
		"nats://h1?replicas=7":              "replicas: at most 5",
		"nats://alice@h1":                   "password: missing",
		"nats://a:b@h1?credentials_file=/c": "credentials_file: there is a user, too",
		"nats://a:b@h1?password_file=/c":    "password_file: there is a password, too",
		"natss://h1?tls_cert_file=/c":       "tls_key_file: missing",
		"natss://h1?tls_min_version=1.1":    "tls_min_version: unknown version",
		"nats://h1?bukket=a":                "did you mean bucket?",
	} {
		c, err := config.Parse(url)
		if err == nil {
			err = c.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", url, err, want)
		}
	}
}
