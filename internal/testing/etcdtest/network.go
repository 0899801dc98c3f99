//go:build unix

package etcdtest

import (
	"bufio"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// network connects the members of a cluster. Each member is reached by the others through a relay, and says in the head
// of its requests who it is. So both directions of its connections can be cut.
type network struct {
	mu       sync.Mutex
	isolated map[string]bool // by the address for peers
	conns    map[*peering]bool
}

// peering is a connection between two members.
type peering struct {
	from, to       string // addresses for peers; from is empty in requests that concern no data
	client, server net.Conn
}

func newNetwork() *network {
	return &network{isolated: make(map[string]bool), conns: make(map[*peering]bool)}
}

// relay returns the address at which the other members reach the one that listens at upstream.
func (n *network) relay(tb testing.TB, upstream string) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	to := l.Addr().String()
	var over sync.WaitGroup
	over.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			over.Go(func() { n.serve(conn, to, upstream) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		n.isolate(to)
		over.Wait()
	})
	return to
}

func (n *network) serve(client net.Conn, to, upstream string) {
	defer client.Close()
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close()
	p := &peering{to: to, client: client, server: server}
	if !n.add(p) {
		return
	}
	defer n.remove(p)
	in := bufio.NewReader(client)
	head, from := readHead(in)
	if !n.identify(p, from) {
		return
	}
	var there sync.WaitGroup
	there.Go(func() {
		defer client.Close()
		defer server.Close()
		if _, err := io.WriteString(server, head); err == nil {
			_, _ = io.Copy(server, in)
		}
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	_ = server.Close()
	there.Wait()
}

// readHead reads the head of the first request of a connection, and the address of its sender in it, if there is one.
// All requests of a connection are from the same member.
func readHead(in *bufio.Reader) (head, from string) {
	for {
		line, err := in.ReadString('\n')
		head += line
		if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(name, "X-PeerURLs") {
			from = strings.TrimPrefix(strings.TrimSpace(value), "http://")
		}
		if err != nil || strings.TrimSpace(line) == "" {
			return head, from
		}
	}
}

func (n *network) add(p *peering) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isolated[p.to] {
		return false
	}
	n.conns[p] = true
	return true
}

func (n *network) identify(p *peering, from string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.from = from
	return !n.isolated[from] && !n.isolated[p.to]
}

func (n *network) remove(p *peering) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, p)
}

// isolate cuts the connections of a member to all others.
func (n *network) isolate(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isolated[addr] = true
	for p := range n.conns {
		if p.from == addr || p.to == addr {
			_ = p.client.Close()
			_ = p.server.Close()
		}
	}
}

// join ends the effect of isolate.
func (n *network) join(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.isolated, addr)
}
