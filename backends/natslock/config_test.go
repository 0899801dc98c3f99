package natslock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/configtest"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/lockertrace"
)

// The same store by a URL, in a file and in the environment, with a user. A lock of one is held for the others.
func TestThreeWays(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, "--user", "alice", "--pass", "hunter2")
	password := filepath.Join(t.TempDir(), "password")
	write(t, password, "hunter2\n")
	configtest.Ways{
		URL: "nats://alice:hunter2@" + s.Addr() + "?prefix=app:&timeout=2s",
		YAML: "backend: nats\nttl: 5s\nprefix: 'app:'\nnats:\n  addrs: " + s.Addr() +
			"\n  username: alice\n  password_file: " + password + "\n",
		Env: []string{
			"LOCKER_BACKEND=nats", "LOCKER_NATS_ADDRS=" + s.Addr(), "LOCKER_NATS_USERNAME=alice",
			"LOCKER_NATS_PASSWORD=hunter2", "LOCKER_PREFIX=app:",
		},
	}.SameLocks(t)
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
	configtest.Mistakes(t, map[string]string{
		"nats://":                           "addrs: missing",
		"nats://h1,,h2":                     "addrs: number 2: address missing",
		"nats://::1":                        "addrs: not host:port: write an IPv6 address in brackets",
		"nats://h:x":                        "addrs: the port is not a number",
		"nats://h1,h2:99999":                "addrs: number 2: the port is not a number",
		"nats://tls://h":                    "addrs: ",
		"nats://h1/bucket":                  "?bucket=locks",
		"nats://h1?bucket=a.b":              "bucket: letters, digits",
		"nats://h1?replicas=7":              "replicas: at most 5",
		"nats://alice@h1":                   "password: missing",
		"nats://a:b@h1?credentials_file=/c": "credentials_file: there is a user, too",
		"nats://a:b@h1?password_file=/c":    "password_file: there is a password, too",
		"natss://h1?tls_cert_file=/c":       "tls_key_file: missing",
		"natss://h1?tls_min_version=1.1":    "tls_min_version: unknown version",
		"nats://h1?bukket=a":                "did you mean bucket?",
	})
}

// users is the configuration of a server that knows one user.
func users(name, password string) string {
	return fmt.Sprintf("authorization { users: [{user: %q, password: %q}] }\n", name, password)
}

// refuses waits until the server has refused n more connections.
func refuses(t *testing.T, s *natstest.Server, n int) {
	t.Helper()
	count := func() int { return bytes.Count(s.Log(), []byte("authentication error")) }
	before := count()
	for end := time.Now().Add(30 * time.Second); count() < before+n; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the server has refused %d connections, not %d:\n%s", count()-before, n, s.Log())
		}
	}
}

// works waits until l grants a lock.
func works(t *testing.T, l locker.Locker, when string) {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		var lease locker.Lease
		if lease, err = l.TryLock(t.Context(), "k", locker.TTL(time.Second)); err == nil {
			_ = lease.Unlock(t.Context())
			return
		}
	}
	t.Errorf("%s: %v", when, err)
}

// write replaces a file that others may be reading.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// A Client that a configuration has opened works again when the server lets it in again, however often it was refused.
func TestNoRefusalIsFinal(t *testing.T) {
	t.Parallel()
	s := natstest.StartConfigured(t, users("alice", "old"))
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, "\ufeffold\r\n") // with a byte order mark, which is not a part of the password
	open := func(user string) *config.Opened {
		l, err := config.Open(t.Context(), "nats://"+user+"@"+s.Addr()+"?timeout=1s&password_file="+file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	alice := open("alice")
	works(t, alice, "at first")

	s.Configure(users("alice", "new"))
	refuses(t, s, 4)
	write(t, file, "new\n")
	works(t, alice, "with the new password")

	bob := open("bob")
	refuses(t, s, 4)
	s.Configure(users("bob", "new"))
	works(t, bob, "when the user exists")
	refuses(t, s, 4)
	_, err := alice.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "or let this user in on the server") {
		t.Errorf("a user who was deleted: %v", err)
	}
	s.Configure(users("alice", "new"))
	works(t, alice, "when the user is back")

	s.Cut()
	works(t, alice, "after the connections were closed")
	up := s.Down()
	_, err = alice.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	up()
	works(t, alice, "when the server is back")
	s.Restart()
	works(t, alice, "after the server was killed")
}

// The client library closes a connection for good when the server sends an error that the library does not know. A
// Client that has made the connection itself makes another one, over which waiters are told of changes.
func TestConnectionsThatTheLibraryClosesAreMadeAnew(t *testing.T) {
	t.Parallel()
	s := natstest.StartConfigured(t, "max_control_line: 512\n")
	open := func() *config.Opened {
		l, err := config.Open(t.Context(), "nats://"+s.Addr()+"?timeout=1s")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	holder, l := open(), open()
	works(t, l, "at first")
	lease, err := holder.TryLock(t.Context(), "waited for", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	woken, done := make(chan lockertrace.WakeReason, 1000), make(chan error, 1)
	go func() {
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
			Woken: func(w lockertrace.Wake) { woken <- w.Reason },
		})
		next, err := l.Lock(ctx, "waited for", locker.Patience(time.Minute))
		if err == nil {
			err = next.Unlock(t.Context())
		}
		done <- err
	}()
	<-woken // it is told of changes
	for range 2 {
		if _, err := l.TryLock(t.Context(), strings.Repeat("long", 200)); !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("a key that is too long for the server: %v", err)
		}
		works(t, l, "after an error that closed the connection")
	}
	for reason := lockertrace.WakePoll; reason != lockertrace.WakeNotify; reason = <-woken {
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("a waiter whose connection was closed: %v", err)
	}
}

// A connection of the program's own that is closed for good is called so, with what keeps it from being closed.
func TestConnectionsThatAreClosedAreCalledSo(t *testing.T) {
	t.Parallel()
	s := start(t)
	conn, err := natsclient.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	l := natslock.New(js)
	defer l.Close()
	conn.Close()
	_, err = l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "closed for good") ||
		!strings.Contains(err.Error(), "nats.IgnoreAuthErrorAbort()") {
		t.Errorf("a connection that is closed: %v", err)
	}
}

// Each new connection asks the program's function for credentials. While it fails, there is no connection, and errors
// say why.
func TestCredentialsOfTheProgram(t *testing.T) {
	t.Parallel()
	s := natstest.StartConfigured(t, users("alice", "token1"))
	c, err := config.Parse("nats://" + s.Addr() + "?timeout=1s")
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Pointer[string] // the token; nil: there is none
	c.Credentials = func(context.Context) (string, string, error) {
		if token := now.Load(); token != nil {
			return "alice", *token, nil
		}
		return "", "", errors.New("the vault is sealed")
	}
	l, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "the vault is sealed") {
		t.Errorf("without credentials: %v", err)
	}
	for _, token := range []string{"token1", "token2"} {
		s.Configure(users("alice", token))
		now.Store(&token)
		works(t, l, "with "+token)
	}
	c.Sections["nats"].(*natslock.Config).CredentialsFile = "/file"
	if _, err := c.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "nats.credentials_file") {
		t.Errorf("a credentials file and a function: %v", err)
	}
}

// Errors that last until somebody does something say what to do.
func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	s := natstest.StartConfigured(t, `
accounts {
  SYS { users: [{user: sys, password: sys}] }
  WITH {
    jetstream: enabled
    users: [
      {user: admin, password: p}
      {user: none, password: p, permissions: {publish: "x", subscribe: "_INBOX.>"}}
      {user: reader, password: p, permissions: {
        publish: ["$JS.API.STREAM.INFO.KV_locker", "$JS.API.STREAM.MSG.GET.KV_locker"], subscribe: "_INBOX.>"
      }}
      {user: deaf, password: p, permissions: {publish: ">", subscribe: "x"}}
    ]
  }
  WITHOUT { users: [{user: plain, password: p}] }
}
system_account: SYS
`)
	admin, err := config.Open(t.Context(), "nats://admin:p@"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	works(t, admin, "a user with all rights")
	for url, want := range map[string][]string{
		"nats://none:p@":                      {`"$JS.API.STREAM.INFO.KV_locker"`, "grant this right to the user"},
		"nats://reader:p@":                    {`"$KV.locker.`, "grant this right to the user"},
		"nats://deaf:p@":                      {`"_INBOX.`, "grant this right to the user"},
		"nats://plain:p@":                     {"switch JetStream on for the account"},
		"nats://admin:wrong@":                 {"Authorization Violation", "correct the user and the password"},
		"nats://admin:p@?domain=none":         {"switch JetStream on", "or give the domain"},
		"nats://admin:p@?replicas=3&bucket=b": {"use a cluster with as many servers, or set replicas to 1"},
		"natss://admin:p@":                    {"the server has no TLS: write nats://"},
	} {
		before, after, _ := strings.Cut(url, "@")
		url = before + "@" + s.Addr() + after
		c, err := config.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		c.Sections["nats"].(*natslock.Config).Timeout = config.Duration(500 * time.Millisecond)
		l, err := c.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.TryLock(t.Context(), "k")
		for _, text := range want {
			if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, expected %q", url, err, text)
			}
		}
		_ = l.Close()
	}
}

// A program with a connection of its own and a program with a URL exclude each other, if neither chooses a prefix.
func TestNewAndURLHaveOnePrefix(t *testing.T) {
	t.Parallel()
	s := start(t)
	byURL, err := config.Open(t.Context(), "nats://"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer byURL.Close()
	byNew := natslock.New(s.js)
	defer byNew.Close()
	if _, err := byURL.TryLock(t.Context(), "k", locker.TTL(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := byNew.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("%v, expected to find the lock held", err)
	}
}
