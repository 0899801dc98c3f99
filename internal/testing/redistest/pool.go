package redistest

import (
	"sync"
	"testing"
)

// Pool lends servers to the subtests of one test, so that not each of them has to start its own: that takes three
// processes a server. A lent server is like one that has just been started. The methods of a Pool may be called from
// several goroutines.
//
// The subtests may change a server's data, but not its configuration. What was frozen or killed is not lent again.
type Pool struct {
	tb testing.TB

	mu   sync.Mutex
	idle []*Server
}

// NewPool returns an empty pool. Its servers end with tb, which must not end before the tests that borrow them.
func NewPool(tb testing.TB) *Pool { return &Pool{tb: tb} }

// Start returns a server that tb has alone until it ends.
func (p *Pool) Start(tb testing.TB) *Server {
	tb.Helper()
	nameOnFailure(tb, Binary(tb)) // without a server, it is this test that fails
	s := p.take()
	if s == nil {
		s = prepare(p.tb, nil)
	}
	s.tb = tb
	if s.Pid() == 0 {
		s.launch()
	}
	tb.Cleanup(func() { p.giveBack(tb, s) })
	return s
}

func (p *Pool) take() *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == 0 {
		return nil
	}
	s := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	return s
}

// giveBack makes a server as good as new, or ends it. A server that stood still may yet execute what it has received.
// Connections are closed first, so that nothing that is on its way is executed after the data have gone.
func (p *Pool) giveBack(tb testing.TB, s *Server) {
	if !tb.Failed() && !s.Disturbed() && s.blank() == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, s)
		return
	}
	s.Kill()
}

func (s *Server) blank() error {
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
