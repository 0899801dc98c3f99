package redistest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/gomodule/redigo/redis"
	"go.uber.org/goleak"
)

// Main runs the tests of a package, and then looks for goroutines that were left; see [Lingering]. In such a package,
// [Start] lends servers, without arguments and durable ones, so that not each test has to start its own: that takes
// three processes a server.
func Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(lending{m}, append(Lingering(), options...)...)
}

type lending struct{ *testing.M }

// Run implements goleak.TestingM. No server is left when it returns.
func (l lending) Run() int {
	shared = new(pool)
	defer func() {
		for _, s := range shared.idle {
			s.end()
		}
	}()
	return l.M.Run()
}

// durable has the arguments that docs/safety.md asks for. No other arguments are used by so many tests.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// shared is nil where each test starts its own servers.
var shared *pool

// pool lends servers. A lent server is like one that has just been started: what has another configuration or other
// users than before is not lent again, nor what a test has left dead.
type pool struct {
	mu   sync.Mutex
	idle []*Server
}

// lend returns a server with these arguments that tb has alone until it ends.
func (p *pool) lend(tb testing.TB, args []string) *Server {
	tb.Helper()
	binary := Binary(tb) // without a server, it is this test that fails
	nameOnFailure(tb, binary)
	s := p.take(binary, args)
	if s == nil {
		s = create(tb, args)
		s.launch()
		s.was = s.is()
	}
	s.tb = tb
	tb.Cleanup(func() { p.giveBack(tb, s) })
	return s
}

func (p *pool) take(binary string, args []string) *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range slices.Backward(p.idle) {
		if s.binary == binary && slices.Equal(s.extra, args) {
			p.idle = slices.Delete(p.idle, i, i+1)
			return s
		}
	}
	return nil
}

// giveBack makes a server as good as new, or ends it.
func (p *pool) giveBack(tb testing.TB, s *Server) {
	s.Resume()
	if !tb.Failed() && s.Pid() != 0 && s.blank() == nil && s.is() == s.was {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, s)
		return
	}
	s.end()
}

// blank deletes what tests leave. A server that stood still may yet execute what it has received. It accepts
// connections in their order, so it has accepted all earlier ones when it answers on a new one. It closes them before
// the data go.
func (s *Server) blank() error {
	conn, err := redis.Dial("tcp", s.Addr(), redis.DialReadTimeout(askTimeout))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Do("PING"); err != nil {
		return err
	}
	for _, command := range [][]any{
		{"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}, {"CLIENT", "KILL", "TYPE", "pubsub"},
		{"FLUSHALL"}, {"SCRIPT", "FLUSH"}, {"CONFIG", "RESETSTAT"}, {"SLOWLOG", "RESET"}, {"LATENCY", "RESET"},
	} {
		if _, err := s.Do(command...); err != nil {
			return err
		}
	}
	return nil
}

// is returns the configuration of the server, its users, and its role with its replicas.
func (s *Server) is() (text string) {
	for _, command := range [][]any{{"ACL", "LIST"}, {"ROLE"}} {
		reply, err := s.Do(command...)
		text += fmt.Sprintln(reply, err)
	}
	reply, err := s.Do("CONFIG", "GET", "*")
	settings := map[any]any{} // which are printed in their order; each process has its own
	all, _ := reply.([]any)
	for pair := range slices.Chunk(all, 2) {
		settings[pair[0]] = pair[1]
	}
	return text + fmt.Sprintln(settings, err)
}
