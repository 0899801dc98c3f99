package redistest

import (
	"net"
	"testing"
)

// A server is lent again as if it were new, unless it was configured or left dead.
func TestPool(t *testing.T) {
	lender := new(pool)
	t.Cleanup(func() {
		for _, s := range lender.idle {
			s.end()
		}
	})
	pids := map[string]int{}
	var args []string
	borrow := func(name string, use func(t *testing.T, s *Server)) {
		t.Run(name, func(t *testing.T) {
			s := lender.lend(t, args)
			pids[name] = s.Pid()
			if keys := s.Keys(t, "*"); len(keys) > 0 {
				t.Errorf("a server that was just lent has %q", keys)
			}
			if known := s.Cmd(t, "SCRIPT", "EXISTS", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db").([]any); known[0] != int64(0) {
				t.Error("a server that was just lent knows a script")
			}
			use(t, s)
		})
	}
	var late net.Conn
	borrow("first", func(t *testing.T, s *Server) {
		s.Cmd(t, "SET", "k", "v")
		s.Cmd(t, "EVAL", "return 1", 0) // its SHA-1 is above
		var err error
		if late, err = net.Dial("tcp", s.Addr()); err != nil {
			t.Fatal(err)
		}
		ask(t, late, "PING\r\n")
	})
	t.Cleanup(func() { _ = late.Close() })
	if _, err := late.Write([]byte("SET late v\r\n")); err == nil {
		if n, err := late.Read(make([]byte, 8)); err == nil {
			t.Errorf("a connection from before has got %d bytes", n)
		}
	}
	borrow("again", func(t *testing.T, s *Server) {
		s.Pause()
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write([]byte("SET late v\r\n")); err != nil {
			t.Fatal(err)
		}
	})
	borrow("after it was paused", func(t *testing.T, s *Server) {
		s.Restart()
		pids["after it was paused"] = s.Pid()
	})
	borrow("after it was restarted", func(t *testing.T, s *Server) { s.Cmd(t, "CONFIG", "SET", "maxmemory", "1gb") })
	borrow("after it was configured", func(t *testing.T, s *Server) { s.Cmd(t, "ACL", "SETUSER", "u") })
	borrow("after it had another user", func(_ *testing.T, s *Server) { s.Kill() })
	borrow("after it was killed", func(*testing.T, *Server) {})
	args = durable
	borrow("durable", func(t *testing.T, s *Server) { s.Cmd(t, "SET", "k", "v") })
	borrow("durable again", func(t *testing.T, s *Server) {
		s.Restart() // with what it has kept
		if keys := s.Keys(t, "*"); len(keys) > 0 {
			t.Errorf("a server that was just lent has kept %q", keys)
		}
	})
	args = nil
	borrow("not durable", func(*testing.T, *Server) {})
	for _, same := range [][2]string{
		{"first", "again"}, {"durable", "durable again"}, {"after it was killed", "not durable"},
		{"after it was paused", "after it was restarted"},
	} {
		if pids[same[0]] != pids[same[1]] {
			t.Errorf("the server of %q was not lent to %q", same[0], same[1])
		}
	}
	for _, other := range [][2]string{
		{"after it was restarted", "after it was configured"}, {"after it was configured", "after it had another user"},
		{"after it had another user", "after it was killed"},
	} {
		if pids[other[0]] == pids[other[1]] {
			t.Errorf("the server of %q was lent to %q", other[0], other[1])
		}
	}
}

func ask(t *testing.T, c net.Conn, command string) {
	t.Helper()
	if _, err := c.Write([]byte(command)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
}
