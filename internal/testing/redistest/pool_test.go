package redistest

import (
	"net"
	"testing"
)

// A server is lent again as if it were new, unless it was frozen or killed.
func TestPool(t *testing.T) {
	pool := NewPool(t)
	pids := map[string]int{}
	borrow := func(name string, use func(t *testing.T, s *Server)) {
		t.Run(name, func(t *testing.T) {
			s := pool.Start(t)
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
	borrow("again", func(t *testing.T, s *Server) { s.Pause(); s.Resume() })
	borrow("after it was paused", func(t *testing.T, s *Server) { s.Restart() })
	borrow("after it was restarted", func(*testing.T, *Server) {})
	if pids["first"] != pids["again"] {
		t.Error("a server was not lent again")
	}
	if pids["again"] == pids["after it was paused"] || pids["after it was paused"] == pids["after it was restarted"] {
		t.Errorf("a server that was paused or restarted was lent again: %v", pids)
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
