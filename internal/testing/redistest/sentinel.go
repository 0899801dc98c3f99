package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// SentinelMaster is the name of the master that a sentinel monitors.
const SentinelMaster = "master"

// StartSentinel runs a sentinel until the test ends, and returns once it knows the master and its replicas. The
// sentinel decides alone. It counts a server as down if the server has not answered for a second.
func StartSentinel(tb testing.TB, master *Server, replicas ...*Server) *Server {
	tb.Helper()
	s := prepare(tb, nil)
	s.config = filepath.Join(s.dir, "sentinel.conf") // the sentinel keeps its state there
	if err := os.WriteFile(s.config, nil, 0o600); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	s.launch()
	host, port, _ := net.SplitHostPort(master.Addr())
	s.Cmd(tb, "SENTINEL", "MONITOR", SentinelMaster, host, port, 1)
	s.Cmd(tb, "SENTINEL", "SET", SentinelMaster, "down-after-milliseconds", 1000, "failover-timeout", 5000)
	for _, r := range replicas {
		r.follows(tb)
	}
	await(tb, "a sentinel that knows all servers", func() bool {
		known, err := s.Do("SENTINEL", "REPLICAS", SentinelMaster)
		if err != nil || len(known.([]any)) < len(replicas) {
			return false
		}
		for _, r := range known.([]any) { // before that, the replica cannot be elected
			if !strings.Contains(fmt.Sprint(r), "flags slave ") ||
				!strings.Contains(fmt.Sprint(r), "master-link-status ok") {
				return false
			}
		}
		return true
	})
	return s
}

// StartReplica runs a redis-server that is a replica of master, over TLS if the master uses that.
func StartReplica(tb testing.TB, master *Server) *Server {
	tb.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	args := []string{"--replicaof", host, port, "--repl-diskless-sync-delay", "0"}
	if master.tls {
		return master.authority.Start(tb, append(args, "--tls-replication", "yes")...)
	}
	return Start(tb, args...)
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
