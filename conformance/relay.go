package conformance

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// relay is a proxy between a driver and its server that breaks a connection at an exact moment: when a marker has
// passed on its way to the server. The marker is a key that nothing else uses. Other traffic, such as the handshake of
// new connections, passes unchanged.
type relay struct {
	addr     string
	upstream string

	mu       sync.Mutex
	listener net.Listener // nil while down
	conns    map[net.Conn]bool
	marker   []byte // nil: do nothing
	cut      bool   // close the connection instead of replying, once; if false, swallow all replies
	marked   bool   // the marker has passed
	wg       sync.WaitGroup
}

// newRelay reserves an address. Nobody listens there until up is called.
func newRelay(t testing.TB, upstream string) *relay {
	t.Helper()
	r := &relay{upstream: upstream, conns: map[net.Conn]bool{}}
	r.addr = freeAddr()
	t.Cleanup(func() {
		r.down()
		r.wg.Wait()
	})
	return r
}

// The ports of relays are counted from a random one, which differs between processes.
var (
	firstPort = rand.Uint32N(relayPorts)
	usedPorts atomic.Uint32
)

const relayPorts = 20000

// freeAddr returns an address at which nobody listens, and which no other relay of this process has: the driver of a
// relay that is down would reach the server through another relay with the same address. The port is below the range of
// ports that the kernel assigns by itself, so another process is unlikely to take it while the relay is down.
func freeAddr() string {
	for {
		port := 10000 + (firstPort+usedPorts.Add(1))%relayPorts
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
		if l, err := net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
}

// up starts to accept connections.
func (r *relay) up(t testing.TB) {
	t.Helper()
	var l net.Listener
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if l, err = net.Listen("tcp", r.addr); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("relay: %v", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listener = l
	r.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(conn) })
		}
	})
}

// down closes every connection and refuses new ones.
func (r *relay) down() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != nil {
		_ = r.listener.Close()
		r.listener = nil
	}
	for conn := range r.conns {
		_ = conn.Close()
	}
}

// cutAfter breaks the connection on which marker has passed when the server replies. It happens once: a repeated
// command succeeds.
func (r *relay) cutAfter(marker string) { r.arm(marker, true) }

// swallowAfter drops the server's replies on connections on which marker has passed.
func (r *relay) swallowAfter(marker string) { r.arm(marker, false) }

func (r *relay) arm(marker string, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marker, r.cut, r.marked = []byte(marker), cut, false
}

// seen reports whether the marker has passed since the relay was armed.
func (r *relay) seen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.marked
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	r.mu.Lock()
	if r.listener == nil {
		_, _ = client.Close(), server.Close()
	}
	r.conns[client], r.conns[server] = true, true
	r.mu.Unlock()

	link := &link{relay: r}
	r.wg.Go(func() {
		_, _ = io.Copy(server, watched{client, link})
		_, _ = client.Close(), server.Close()
	})
	_, _ = io.Copy(client, gated{server, link})
	_, _ = client.Close(), server.Close()

	r.mu.Lock()
	delete(r.conns, client)
	delete(r.conns, server)
	r.mu.Unlock()
}

// link is one connection through the relay.
type link struct {
	relay *relay
	tail  []byte // the last bytes that passed, in case the marker is split

	// guarded by relay.mu
	hit, cut bool
}

// watched is the client's side of a link. It finds the marker before the bytes are passed to the server.
type watched struct {
	io.Reader
	link *link
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.link.inspect(p[:n])
	return n, err
}

func (l *link) inspect(p []byte) {
	r := l.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.marker) == 0 {
		return
	}
	l.tail = append(l.tail, p...)
	if bytes.Contains(l.tail, r.marker) {
		l.tail = nil
		l.hit, l.cut, r.marked = true, r.cut, true
		if r.cut {
			r.marker = nil
		}
	} else if keep := len(r.marker) - 1; len(l.tail) > keep {
		l.tail = bytes.Clone(l.tail[len(l.tail)-keep:])
	}
}

// gated is the server's side of a link. Once the marker has passed, it ends or delivers nothing more.
type gated struct {
	io.Reader
	link *link
}

func (g gated) Read(p []byte) (int, error) {
	for {
		n, err := g.Reader.Read(p)
		g.link.relay.mu.Lock()
		hit, cut := g.link.hit, g.link.cut
		g.link.relay.mu.Unlock()
		switch {
		case err != nil || !hit:
			return n, err
		case cut:
			return 0, io.EOF
		}
	}
}

// muteServer accepts connections, reads everything and never answers.
func muteServer(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("mute server: %v", err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(io.Discard, conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}
