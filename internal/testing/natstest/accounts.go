//go:build unix

package natstest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/golocker/locker/internal/testing/testserver"
)

// StartConfigured is like Start, for a server with a configuration file of the given text.
func StartConfigured(tb testing.TB, text string) *Server {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "nats.conf")
	write(tb, path, text)
	s := Start(tb, "-c", path)
	s.conf = path
	return s
}

// Configure gives a server of StartConfigured another configuration, which it takes over while it runs. It closes the
// connections of users that are gone. Configure does not wait for that.
func (s *Server) Configure(text string) {
	s.tb.Helper()
	write(s.tb, s.conf, text)
	if err := syscall.Kill(s.Pid(), syscall.SIGHUP); err != nil {
		s.tb.Fatalf("natstest: %v", err)
	}
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatalf("natstest: %v", err)
	}
}

// StartHubAndLeaf runs two servers until the test ends, with JetStream domains "hub" and "leaf". A client of the leaf
// reaches the JetStream of the hub by its domain, and messages on other subjects travel between the two.
func StartHubAndLeaf(tb testing.TB) (hub, leaf *Server) {
	tb.Helper()
	const accounts = `
accounts {
  SYS { users: [{user: sys, password: sys}] }
  APP { users: [{user: app, password: app}], jetstream: enabled }
}
system_account: SYS
no_auth_user: app
`
	link := testserver.FreeAddr(tb)
	hub = StartConfigured(tb, fmt.Sprintf(`
server_name: hub
jetstream { domain: hub }
leafnodes { listen: "%s" }`, link)+accounts)
	leaf = StartConfigured(tb, fmt.Sprintf(`
server_name: leaf
jetstream { domain: leaf }
leafnodes { remotes: [{ urls: ["nats://app:app@%s"], account: APP }] }`, link)+accounts)
	return hub, leaf
}
