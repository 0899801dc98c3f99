package redistest

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Bus is the network between the servers of a [Cluster]. It can fail between some servers while clients reach all of
// them. Each server's bus port has a proxy, whose address the other servers know. The proxy recognizes the sender of
// each connection by the packets. Network namespaces and packet filters would need root.
//
// Replication does not pass through the Bus, because it uses the port for clients.
//
// Its methods may be called from several goroutines.
type Bus struct {
	tb        testing.TB
	ids       map[*Server]string
	listeners []net.Listener
	done      chan struct{} // closed when the test ends
	wg        sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	held    map[route]bool
	refused map[route]bool
	conns   map[net.Conn]route // open connections; the two connections of a pair have the same route
	changed chan struct{}      // closed and replaced by Heal
	stopped int
}

// route is a pair of server ids, from the server that made a connection to the other one.
type route struct{ from, to string }

func (r route) back() route { return route{r.to, r.from} }

// Bus starts the proxies until the test ends, and returns when the servers communicate only through them. A server that
// is restarted later bypasses its proxy.
func (c *Cluster) Bus(tb testing.TB) *Bus {
	tb.Helper()
	b := &Bus{
		tb: tb, ids: c.ids, done: make(chan struct{}),
		held: map[route]bool{}, refused: map[route]bool{}, conns: map[net.Conn]route{}, changed: make(chan struct{}),
	}
	tb.Cleanup(b.close)
	ports := map[*Server]string{}
	for _, s := range c.Servers() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		b.listeners = append(b.listeners, l)
		b.wg.Go(func() { b.accept(l, s) })
		_, ports[s], _ = net.SplitHostPort(l.Addr().String())
		s.Cmd(tb, "CONFIG", "SET", "cluster-announce-bus-port", ports[s])
	}
	links := 0
	for _, s := range c.Servers() {
		for _, other := range c.Servers() {
			if s != other { // a PING would tell the port as well, but half a cluster-node-timeout later
				s.Cmd(tb, "CLUSTER", "MEET", "127.0.0.1", other.port, ports[other])
				links++
			}
		}
	}
	await(tb, "servers that talk through proxies", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		known := map[route]bool{}
		for _, r := range b.conns {
			if r.from != "" {
				known[r] = true
			}
		}
		return len(known) == links
	})
	c.Await(tb)
	return b
}

// Hold delays all packets of one server to another until Heal.
func (b *Bus) Hold(from, to *Server) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[route{b.ids[from], b.ids[to]}] = true
}

// Refuse closes all connections between two servers in both directions, and new ones until Heal.
func (b *Bus) Refuse(s, other *Server) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := route{b.ids[s], b.ids[other]}
	b.refused[r], b.refused[r.back()] = true, true
	for conn, r := range b.conns {
		if b.refused[r] {
			b.stopped++
			_ = conn.Close()
		}
	}
}

// Heal ends the effect of Hold and Refuse.
func (b *Bus) Heal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.held)
	clear(b.refused)
	close(b.changed)
	b.changed = make(chan struct{})
}

// Stopped returns how many packets and connections have been held or refused so far.
func (b *Bus) Stopped() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopped
}

func (b *Bus) accept(l net.Listener, s *Server) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if b.admit(conn, route{}) {
			b.wg.Go(func() { b.serve(conn, s) })
		}
	}
}

// admit records the route of a connection, or closes the connection.
func (b *Bus) admit(conn net.Conn, r route) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refused[r] {
		b.stopped++
	}
	if b.closed || b.refused[r] {
		_ = conn.Close()
		return false
	}
	b.conns[conn] = r
	return true
}

// drop closes a connection and forgets it. It may be called twice.
func (b *Bus) drop(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = conn.Close()
	delete(b.conns, conn)
}

// header is the number of bytes of a packet up to the id of its sender: "RCmb", 36 bytes that do not matter here, and
// the 40 bytes of the id.
const header = 80

func (b *Bus) serve(conn net.Conn, s *Server) {
	defer b.drop(conn)
	in := bufio.NewReader(conn)
	first, err := in.Peek(header)
	if err != nil {
		return // the sender has closed the connection without a packet
	}
	if string(first[:4]) != "RCmb" {
		b.tb.Errorf("redistest: this is no packet of a cluster's bus: %q", first)
		return
	}
	r := route{string(first[header-40:]), b.ids[s]}
	if !b.admit(conn, r) {
		return
	}
	up, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port+busOffset)))
	if err != nil || !b.admit(up, r) {
		return
	}
	defer b.drop(up)
	var answers sync.WaitGroup
	answers.Go(func() { b.carry(conn, up, r.back()) })
	b.carry(up, in, r)
	answers.Wait()
}

// carry copies the packets of a route from one connection to the other until either is closed. Then it closes the other
// one.
func (b *Bus) carry(to net.Conn, from io.Reader, r route) {
	defer b.drop(to)
	buf := make([]byte, 1<<14)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !b.pass(r) {
				return
			}
			_, _ = to.Write(buf[:n]) // if to is closed, from will be closed soon
		}
		if err != nil {
			return
		}
	}
}

// pass waits until packets may pass on a route. It reports false if the test ends first.
func (b *Bus) pass(r route) bool {
	for first := true; ; first = false {
		b.mu.Lock()
		held, changed := b.held[r], b.changed
		if held && first {
			b.stopped++
		}
		b.mu.Unlock()
		if !held {
			return true
		}
		select {
		case <-changed:
		case <-b.done:
			return false
		}
	}
}

func (b *Bus) close() {
	b.mu.Lock()
	b.closed = true
	for conn := range b.conns {
		_ = conn.Close()
	}
	b.mu.Unlock()
	close(b.done)
	for _, l := range b.listeners {
		_ = l.Close()
	}
	b.wg.Wait()
}
