package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// SentinelMaster is the name of the master that a sentinel monitors.
const SentinelMaster = "master"

// StartSentinel runs a sentinel until the test ends, and returns once it knows the master and its replicas. The
// sentinel decides alone. It counts a server as down if the server has not answered for a second.
func StartSentinel(tb testing.TB, master *Server, replicas ...*Server) *Server {
	tb.Helper()
	return StartSentinels(tb, 1, time.Second, master, replicas...)[0]
}

// StartSentinels is StartSentinel for n sentinels that know each other. The majority decides. A server is down if it
// has not answered for as long as down. As [StartReplica] does, the sentinels take over TLS and the password of the
// master.
func StartSentinels(tb testing.TB, n int, down time.Duration, master *Server, replicas ...*Server) []*Server {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	sentinels := make([]*Server, n)
	for i := range sentinels {
		s := master.prepareLike(tb)
		s.config = filepath.Join(s.dir, "sentinel.conf") // the sentinel keeps its state there
		if err := os.WriteFile(s.config, nil, 0o600); err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		s.launch()
		s.Cmd(tb, "SENTINEL", "MONITOR", SentinelMaster, host, port, n/2+1)
		s.Cmd(tb, "SENTINEL", "SET", SentinelMaster, "down-after-milliseconds", down.Milliseconds(),
			"failover-timeout", 5*down.Milliseconds())
		if password := master.option("--requirepass"); password != "" {
			s.Cmd(tb, "SENTINEL", "SET", SentinelMaster, "auth-pass", password)
		}
		sentinels[i] = s
	}
	for _, r := range replicas {
		r.follows(tb)
	}
	for _, s := range sentinels {
		await(tb, "a sentinel that knows all servers", func() bool { return s.knows(n, len(replicas)) })
	}
	return sentinels
}

// knows reports whether a sentinel knows the others of n, and as many replicas, all of which can be elected.
func (s *Server) knows(n, replicas int) bool {
	others, err := s.Do("SENTINEL", "SENTINELS", SentinelMaster)
	if err != nil || len(others.([]any)) < n-1 {
		return false
	}
	known, err := s.Do("SENTINEL", "REPLICAS", SentinelMaster)
	if err != nil || len(known.([]any)) < replicas {
		return false
	}
	for _, r := range known.([]any) {
		if !strings.Contains(fmt.Sprint(r), "flags slave ") || !strings.Contains(fmt.Sprint(r), "master-link-status ok") {
			return false
		}
	}
	return true
}

// StartReplica runs a redis-server that is a replica of master. Like the master, it uses TLS, asks for client
// certificates, and wants a password.
func StartReplica(tb testing.TB, master *Server) *Server {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	s := master.prepareLike(tb, "--replicaof", host, port, "--repl-diskless-sync-delay", "0")
	if password := master.option("--requirepass"); password != "" {
		s.extra = append(s.extra, "--masterauth", password)
	}
	s.launch()
	return s
}

// prepareLike prepares a server that uses the TLS and the password of s.
func (s *Server) prepareLike(tb testing.TB, args ...string) *Server {
	tb.Helper()
	for _, name := range []string{"--requirepass", "--tls-auth-clients"} {
		if value := s.option(name); value != "" {
			args = append(args, name, value)
		}
	}
	if s.tls {
		return s.authority.prepare(tb, append(args, "--tls-replication", "yes"))
	}
	return prepare(tb, args)
}

// option returns the last value of an option of the command line, or an empty string.
func (s *Server) option(name string) (value string) {
	for i, arg := range s.extra[:max(0, len(s.extra)-1)] {
		if arg == name {
			value = s.extra[i+1]
		}
	}
	return value
}

// Follow makes the server a replica of master, and returns when the server has the master's data.
func (s *Server) Follow(tb testing.TB, master *Server) {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	await(tb, "a server that becomes a replica", func() bool {
		_, err := s.Do("REPLICAOF", host, port) // an error is possible if a sentinel does the same and closes connections
		return err == nil
	})
	s.follows(tb)
}

func (s *Server) follows(tb testing.TB) {
	tb.Helper()
	await(tb, "a replica that has its data", func() bool {
		info, _ := s.Do("INFO", "replication")
		return strings.Contains(fmt.Sprint(info), "master_link_status:up")
	})
}
