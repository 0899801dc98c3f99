package sentinel_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers/internal/sentinel"
)

// fakeSentinel answers as a sentinel does, with what a test tells it to say.
type fakeSentinel struct {
	net.Listener
	password string

	mu          sync.Mutex
	master      string // empty: it knows none
	epoch       int
	silent      bool
	late        int  // how many questions are answered only when the other sentinels have answered
	asked       bool // somebody has asked for the master
	refusal     string
	subscribers []net.Conn
	conns       []net.Conn
	tasks       sync.WaitGroup
}

func startSentinel(t *testing.T, master string) *fakeSentinel {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &fakeSentinel{Listener: l, master: master}
	s.tasks.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.tasks.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.mu.Unlock()
		s.tasks.Wait()
	})
	return s
}

func (s *fakeSentinel) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	open := false
	for {
		words, err := sentinel.Read(in)
		if err != nil {
			return
		}
		cmd := fmt.Sprint(words)
		s.mu.Lock()
		s.asked = s.asked || strings.Contains(cmd, "GET-MASTER")
		if s.late > 0 && strings.Contains(cmd, "GET-MASTER") {
			s.late--
			s.mu.Unlock()
			<-time.After(4 * sentinel.Straggle)
			s.mu.Lock()
		}
		switch master, port, _ := net.SplitHostPort(s.master); {
		case s.silent:
		case strings.HasPrefix(cmd, "[AUTH"):
			open = cmd == "[AUTH "+s.password+"]"
			s.say(conn, map[bool]string{true: "+OK\r\n", false: "-WRONGPASS no\r\n"}[open])
		case !open && s.password != "":
			s.say(conn, "-NOAUTH Authentication required.\r\n")
		case s.refusal != "":
			s.say(conn, "-"+s.refusal+"\r\n")
		case strings.HasPrefix(cmd, "[SUBSCRIBE"):
			s.subscribers = append(s.subscribers, conn)
			s.say(conn, "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")
		case cmd == "[PING]":
			s.say(conn, "*2\r\n$4\r\npong\r\n$0\r\n\r\n")
		case s.master == "" && strings.Contains(cmd, "GET-MASTER"):
			s.say(conn, "*-1\r\n")
		case strings.Contains(cmd, "GET-MASTER"):
			s.say(conn, fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(master), master, len(port), port))
		default:
			epoch := fmt.Sprint(s.epoch)
			s.say(conn, fmt.Sprintf("*2\r\n$12\r\nconfig-epoch\r\n$%d\r\n%s\r\n", len(epoch), epoch))
		}
		s.mu.Unlock()
	}
}

func (*fakeSentinel) say(conn net.Conn, text string) { _, _ = conn.Write([]byte(text)) }

// tell changes what the sentinel says, and tells its subscribers that there is a new master.
func (s *fakeSentinel) tell(master string, epoch int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.master, s.epoch = master, epoch
	news := "m 127.0.0.1 1 " + strings.Replace(master, ":", " ", 1)
	for _, conn := range s.subscribers {
		s.say(conn, fmt.Sprintf("*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$%d\r\n%s\r\n", len(news), news))
	}
}

func (s *fakeSentinel) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}
