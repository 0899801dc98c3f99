package redlock

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/wire"
)

// testbed is five simulated nodes a tenth of a millisecond away from their clients.
type testbed struct {
	t     *testing.T
	nodes []*simnode.Node
	// event, if not nil, is called before each command of a client to a node, and after its execution.
	event func(client, node int, cmds []drivers.Command, executed bool)

	mu       sync.Mutex
	clients  []*locker.Client
	backends []*majority       // of the clients
	state    map[[2]int]string // of the way from a client to a node: "hung", "dead", "slow", or in order
	attempts map[string]int    // acquisitions, by their token: how many nodes were asked
	extended map[string]bool   // tokens of leases that were extended
	joined   map[string]int    // by token: where its last attempt was a part of a joined command
	turns    int               // how often a node was asked for the turn
	bare     bool              // clients to come cannot subscribe
}

const everybody = -1

func newTestbed(t *testing.T) *testbed {
	s := &testbed{t: t, state: map[[2]int]string{}, attempts: map[string]int{}, extended: map[string]bool{},
		joined: map[string]int{}}
	for range 5 {
		s.nodes = append(s.nodes, simnode.New())
	}
	return s
}

func (s *testbed) client() *locker.Client {
	c := len(s.clients)
	b := &majority{budget: DefaultBudget, logger: slog.New(slog.DiscardHandler), closing: make(chan struct{})}
	ds := make([]drivers.Driver, len(s.nodes))
	for i, n := range s.nodes {
		ds[i] = n.Driver(func(ctx context.Context, cmds []drivers.Command,
			execute func() []drivers.Reply) ([]drivers.Reply, error) {
			return s.deliver(ctx, c, i, cmds, execute)
		})
		if s.bare {
			ds[i] = struct{ drivers.Driver }{ds[i]}
		}
		b.names = append(b.names, string(rune('a'+i)))
		b.nodes = append(b.nodes, node.New(ds[i], node.Options{Name: b.names[i], Prefix: DefaultPrefix, Number: i + 1}))
	}
	s.backends, s.clients = append(s.backends, b), append(s.clients, locker.NewClient(b))
	return s.clients[c]
}

func (s *testbed) deliver(ctx context.Context, c, i int, cmds []drivers.Command,
	execute func() []drivers.Reply) ([]drivers.Reply, error) {
	s.note(i, cmds)
	if s.event != nil {
		s.event(c, i, cmds, false)
	}
	s.mu.Lock()
	state := s.state[[2]int{c, i}] + s.state[[2]int{everybody, i}]
	s.mu.Unlock()
	switch state {
	case "dead":
		return nil, drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	case "hung":
		<-ctx.Done()
		return nil, io.EOF
	case "slow":
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(100 * time.Microsecond)
	replies := execute()
	if s.event != nil {
		s.event(c, i, cmds, true)
	}
	time.Sleep(100 * time.Microsecond)
	return replies, nil
}

// asked is how many acquisitions there were.
func (s *testbed) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.attempts)
}

func (s *testbed) note(i int, cmds []drivers.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range cmds {
		for _, step := range wire.Steps(cmd) {
			switch step.Script {
			case "acquire":
				mask := 1 << i
				again := s.attempts[step.Token]&mask != 0 && !s.extended[step.Token]
				if again && s.joined[step.Token]&mask == 0 {
					s.t.Errorf("node %d is asked twice for the same token", i)
				}
				s.attempts[step.Token] |= mask
				s.joined[step.Token] &^= mask
				if step.Joined {
					s.joined[step.Token] |= mask
				}
			case "extend": // after which it may heal
				s.extended[step.Token] = true
			case "turn":
				s.turns++
			}
		}
	}
}

// set puts the way from a client to a node into a state.
func (s *testbed) set(client, node int, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state[[2]int{client, node}] = state
}

// close closes all clients, and checks that nothing is left on nodes, which are in order, after some seconds.
func (s *testbed) close() {
	s.t.Helper()
	s.wantNothing()
	for _, c := range s.clients {
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *testbed) wantNothing() {
	s.t.Helper()
	time.Sleep(3 * time.Second) // for clean-ups
	for i, n := range s.nodes {
		for _, key := range n.Left() {
			s.t.Errorf("node %d still has %q", i, key)
		}
	}
}

func (s *testbed) lockers(n int) (ls []locker.Locker) {
	for range n {
		ls = append(ls, s.client())
	}
	return ls
}

// contend runs all clients for d, and returns what came of it and how many attempts each acquisition took.
func (s *testbed) contend(ls []locker.Locker, d time.Duration) (contention.Result, float64) {
	s.t.Helper()
	r := contention.Run(s.t, ls, "k", time.Millisecond, d, locker.TTL(30*time.Second))
	each := float64(s.asked()) / float64(r.Total())
	s.t.Logf("%v, gap %v, %.3f attempts each", r, slices.Max(r.Handoffs), each)
	return r, each
}

// queueNode is the node that keeps the queue for "k".
var queueNode = agreed("k", 5)

func isAcquiring(cmd drivers.Command) bool { return wire.Acquires(cmd) }
func isTurn(cmd drivers.Command) bool      { return wire.Calls(cmd, "turn") }
