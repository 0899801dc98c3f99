package drivers

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeSentinel answers as a sentinel does, with what a test tells it to say.
type fakeSentinel struct {
	net.Listener
	password string

	mu          sync.Mutex
	master      string // empty: it knows none
	epoch       int
	silent      bool
	late        int // how many questions are answered only when the other sentinels have answered
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
	in := &exchange{conn: conn, r: bufio.NewReader(conn)}
	open := false
	for {
		words, err := in.reply(0)
		if err != nil {
			return
		}
		cmd := fmt.Sprint(words)
		s.mu.Lock()
		if s.late > 0 && strings.Contains(cmd, "GET-MASTER") {
			s.late--
			s.mu.Unlock()
			<-time.After(4 * straggle)
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

// startMaster accepts connections and says nothing.
func startMaster(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func dialerTo(t *testing.T, sentinels ...*fakeSentinel) *Dialer {
	s := &Sentinel{Master: "m"}
	for _, each := range sentinels {
		s.Addrs = append(s.Addrs, each.Addr().String())
	}
	d := NewDialer(Config{Sentinel: s})
	t.Cleanup(d.Close)
	return d
}

// dialed returns the address of the server that d connects to.
func dialed(t *testing.T, d *Dialer) (addr string, conn net.Conn) {
	t.Helper()
	conn, err := d.Dial(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.RemoteAddr().String(), conn
}

func TestDialerAsksTheSentinels(t *testing.T) {
	master := startMaster(t)
	none, down := startSentinel(t, ""), startSentinel(t, master)
	_ = down.Close()
	d := dialerTo(t, down, none, startSentinel(t, master))
	addr, _ := dialed(t, d)
	assert.Equal(t, master, addr, "one that knows the master is enough")
}

// A sentinel that is cut off from the others names the former master. It must not be believed because it answers first.
func TestDialerBelievesTheNewestConfiguration(t *testing.T) {
	former, master := startMaster(t), startMaster(t)
	stale, current := startSentinel(t, former), startSentinel(t, master)
	stale.set(func() { stale.epoch = 3 })
	current.set(func() { current.epoch = 4 })
	for _, order := range [][]*fakeSentinel{{stale, current, stale}, {current, stale}} {
		addr, _ := dialed(t, dialerTo(t, order...))
		assert.Equal(t, master, addr)
	}
}

func TestDialerDoesNotWaitForASentinelThatHangs(t *testing.T) {
	master := startMaster(t)
	hung := startSentinel(t, master)
	hung.set(func() { hung.silent = true })
	addr, _ := dialed(t, dialerTo(t, hung, startSentinel(t, master)))
	assert.Equal(t, master, addr)
}

func TestDialerSaysWhatIsWrongWithTheSentinels(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *fakeSentinel)
		want  string
	}{
		"unknown name":   {func(s *fakeSentinel) { s.master = "" }, "knows no master named m"},
		"password":       {func(s *fakeSentinel) { s.password = "x" }, "NOAUTH Authentication required."},
		"not a sentinel": {func(s *fakeSentinel) { s.refusal = "ERR unknown command" }, "is not a sentinel"},
		"down":           {func(s *fakeSentinel) { _ = s.Close() }, "connection refused"},
		"hung":           {func(s *fakeSentinel) { s.silent = true }, "no answer within 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSentinel(t, startMaster(t))
			s.set(func() { c.spoil(s) })
			d := NewDialer(Config{Sentinel: &Sentinel{Master: "m", Addrs: []string{s.Addr().String()}},
				Timeout: 50 * time.Millisecond})
			defer d.Close()
			_, err := d.Dial(t.Context())
			require.ErrorIs(t, err, ErrNotSent)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, s.Addr().String())
		})
	}
}

func TestDialerAuthenticates(t *testing.T) {
	master := startMaster(t)
	s := startSentinel(t, master)
	s.set(func() { s.password = "user secret" })
	c := Config{Sentinel: &Sentinel{Master: "m", Addrs: []string{s.Addr().String()}, Username: "user",
		Password: "secret"}, Password: "the master's"}
	d := NewDialer(c)
	defer d.Close()
	addr, _ := dialed(t, d)
	assert.Equal(t, master, addr)
}

// The connections to a former master are closed, although nobody else closes them. Those to the master stay open.
func TestDialerLeavesAFormerMaster(t *testing.T) {
	former, master := startMaster(t), startMaster(t)
	sentinels := []*fakeSentinel{startSentinel(t, former), startSentinel(t, former), startSentinel(t, former)}
	d := dialerTo(t, sentinels...)
	_, before := dialed(t, d)
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(sentinels, func(s *fakeSentinel) (heard bool) {
			s.set(func() { heard = len(s.subscribers) > 0 })
			return heard
		})
	}, 10*time.Second, time.Millisecond, "it listens to a sentinel")
	for _, s := range sentinels {
		s.tell(master, 1)
	}
	require.NoError(t, before.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := before.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	addr, after := dialed(t, d)
	assert.Equal(t, master, addr)

	for _, s := range sentinels {
		s.tell(master, 2)
	}
	_, _ = dialed(t, d)
	assert.False(t, closed(after))
}

// The sentinel that tells of a new master answers late, and those that answer first have not heard of it. It must not be
// forgotten: the connection to the former master may stay open.
func TestDialerRemembersTheNews(t *testing.T) {
	former, master := startMaster(t), startMaster(t)
	sentinels := []*fakeSentinel{startSentinel(t, former), startSentinel(t, former)}
	d := dialerTo(t, sentinels...)
	_, before := dialed(t, d)
	teller := -1
	require.Eventually(t, func() bool {
		teller = slices.IndexFunc(sentinels, func(s *fakeSentinel) (heard bool) {
			s.set(func() { heard = len(s.subscribers) > 0 })
			return heard
		})
		return teller >= 0
	}, 10*time.Second, time.Millisecond, "it listens to a sentinel")
	sentinels[teller].set(func() { sentinels[teller].late = 2 })
	sentinels[teller].tell(master, 1)
	require.NoError(t, before.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := before.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	addr, _ := dialed(t, d)
	assert.Equal(t, master, addr)
}

func TestDialerForgetsConnectionsThatAreClosed(t *testing.T) {
	d := dialerTo(t, startSentinel(t, startMaster(t)))
	for range 5 {
		_, conn := dialed(t, d)
		_ = conn.Close()
	}
	_, _ = dialed(t, d)
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Len(t, d.conns, 1)
}

func TestDialerAfterClose(t *testing.T) {
	s := startSentinel(t, startMaster(t))
	s.set(func() { s.silent = true })
	d := dialerTo(t, s)
	waiting := make(chan error, 1)
	go func() {
		_, err := d.Dial(context.Background())
		waiting <- err
	}()
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.current != nil
	}, 10*time.Second, time.Millisecond)
	d.Close()
	require.Error(t, <-waiting)
	_, err := d.Dial(t.Context())
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, err, ErrNotSent)
}

func TestDialerOfAStandaloneServer(t *testing.T) {
	addr := startMaster(t)
	d := NewDialer(Config{Network: "tcp", Addr: addr})
	got, _ := dialed(t, d)
	assert.Equal(t, addr, got)
	d.Close()
}
