// Package fault is a TCP proxy between a Redis client and a real server, for tests. It injects network faults into
// single commands: it loses them, delays them, or executes them and loses the reply.
//
// It understands enough of the protocol, RESP2 and RESP3, to know which reply belongs to which request. It can
// therefore lose the reply to a command that was executed. "Executed" always means that the server's reply has been
// read.
//
// Pub/sub works in both protocols: messages, pushes and attributes pass unchanged.
//
// It does not understand TLS, inline commands, and commands that are not answered exactly once, such as MONITOR and
// CLIENT REPLY OFF. A bare UNSUBSCRIBE counts as answered by its first confirmation. On a connection that has
// subscribed, an array that begins with "message" counts as a message. A blocking command stays blocked on the server
// when its client leaves, because the connection to the server stays open until all requests are answered.
package fault

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy listens on the loopback interface and connects each client to the upstream server, with one connection to the
// server for each connection of a client. Its methods may be called from several goroutines. Wait and WaitExecuted are
// an exception: they can fail the test, so only the test's own goroutine may call them.
type Proxy struct {
	tb        testing.TB
	listener  net.Listener
	hangLimit time.Duration // see Wait
	done      chan struct{} // closed when the test ends
	wg        sync.WaitGroup

	deciding sync.Mutex // held while the handler runs

	mu       sync.Mutex
	upstream string
	handler  func(Request) Action
	refuse   bool
	closed   bool
	accepts  int
	conns    map[net.Conn]bool // all open connections; true: of a client
	gate     chan struct{}     // closed and replaced by Release
	changed  chan struct{}     // closed and replaced when seen changes
	seen     []record
}

// dialTimeout bounds the time to connect to the server, so that the test can end although a server hangs.
const dialTimeout = 5 * time.Second

// New starts a proxy in front of the server at address upstream. The proxy ends with the test. It then closes all
// connections and drops what is still held, and all its goroutines have returned.
//
// If the server is down, the proxy closes a client's connection at once.
func New(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("fault: %v", err)
	}
	p := &Proxy{
		tb: tb, upstream: upstream, listener: listener, hangLimit: hangLimit, done: make(chan struct{}),
		conns: map[net.Conn]bool{}, gate: make(chan struct{}), changed: make(chan struct{}),
	}
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Addr returns the address to connect to, 127.0.0.1:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Handle makes f decide about every request from now on. If f is nil, all requests pass, which is also the default. f
// is called for a request that waits behind a held one when the request's turn comes.
//
// f is called for one request at a time, in the order of [Request.N], so f needs no lock of its own. It may call the
// methods of the proxy, but must not wait for other requests.
func (p *Proxy) Handle(f func(Request) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = f
}

// Release ends the holding of all requests that have been seen by now, or that the handler is deciding about, and of
// their replies. Requests that arrive later are held again if the handler says so.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.gate)
	p.gate = make(chan struct{})
}

// Cut closes all connections of clients. Requests that have been read from them still reach the server, at once or, if
// they are held, after Release. A connection on which nothing was sent may be too young to be known. Call Refuse before
// Cut to close such connections, too.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn, client := range p.conns {
		if client {
			_ = conn.Close()
		}
	}
}

// Refuse makes the proxy close new connections at once, or accept them again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Redirect connects new clients to another server. Existing connections stay open. [Proxy.Cut] closes them.
func (p *Proxy) Redirect(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		if id := p.admit(conn); id > 0 {
			l := &link{p: p, id: id, client: conn}
			p.wg.Go(l.serve)
		}
	}
}

// admit returns the connection's number. If the connection is refused, admit closes it and returns 0.
func (p *Proxy) admit(conn net.Conn) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		_ = conn.Close()
		return 0
	}
	p.conns[conn] = true
	p.accepts++
	return p.accepts
}

// dial connects to the server. The caller closes the connection with p.drop.
func (p *Proxy) dial() (net.Conn, error) {
	p.mu.Lock()
	upstream := p.upstream
	p.mu.Unlock()
	conn, err := net.DialTimeout("tcp", upstream, dialTimeout)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	p.conns[conn] = false
	return conn, nil
}

// drop closes a connection and forgets it. It may be called twice.
func (p *Proxy) drop(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = conn.Close()
	delete(p.conns, conn)
}

// pause waits until c is ready. It reports false if the test ended first.
func pause[T any](p *Proxy, c <-chan T) bool {
	select {
	case <-c:
		return true
	case <-p.done:
		return false
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	close(p.done)
	_ = p.listener.Close()
	p.wg.Wait()
}
