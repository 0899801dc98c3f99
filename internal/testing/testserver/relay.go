package testserver

import (
	"bufio"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// dialTimeout bounds the time to connect to the server, so that the test can end although a server hangs.
const dialTimeout = time.Minute

// Relay passes what clients and a server send to each other, with one connection to the server for each connection of a
// client. Its methods may be called from several goroutines.
type Relay struct {
	listener net.Listener
	protocol Protocol
	all      sync.WaitGroup

	mu       sync.Mutex
	changed  *sync.Cond
	upstream string
	hung     bool // bytes wait
	refusing bool // connections end at once
	closed   bool
	conns    map[net.Conn]bool // false: silent
}

// Protocol returns what is done with the requests and the replies of a new connection.
type Protocol func() (requests, replies Side)

// Side is one direction of a connection.
type Side struct {
	// Read returns what is passed on as a whole. It may use the memory again that it has returned.
	Read func(from *bufio.Reader) ([]byte, error)
	// Decide says what happens to it. If it is nil, everything passes. No two calls for one Relay overlap.
	Decide func(piece []byte) Action
}

// Action is what happens to bytes.
type Action int

// The actions.
const (
	Pass Action = iota
	Drop
	Cut // ends the connection
)

// Chunks returns a function that reads whatever arrives.
func Chunks() func(from *bufio.Reader) ([]byte, error) {
	b := make([]byte, 64<<10)
	return func(from *bufio.Reader) ([]byte, error) {
		n, err := from.Read(b)
		return b[:n], err
	}
}

// NewRelay starts a relay to the server at upstream, which is host:port or the path of a unix socket. It ends with the
// test, and then all its goroutines have returned.
func NewRelay(tb testing.TB, upstream string, protocol Protocol) *Relay {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("relay: %v", err)
	}
	r := &Relay{listener: l, protocol: protocol, upstream: upstream, conns: make(map[net.Conn]bool)}
	r.changed = sync.NewCond(&r.mu)
	r.all.Go(r.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		r.Set(func() { r.closed = true })
		r.Cut()
		r.all.Wait()
	})
	return r
}

// Addr returns the address for clients, host:port.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Set changes what the functions of the Protocol read.
func (r *Relay) Set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	r.changed.Broadcast()
}

// To makes new connections go to another server.
func (r *Relay) To(upstream string) { r.Set(func() { r.upstream = upstream }) }

// Down closes all connections, and refuses new ones, until up is called.
func (r *Relay) Down() (up func()) {
	r.Set(func() { r.refusing = true })
	r.Cut()
	return func() { r.Set(func() { r.refusing = false }) }
}

// Hang keeps all bytes, in both directions, until resume is called.
func (r *Relay) Hang() (resume func()) {
	r.Set(func() { r.hung = true })
	return func() { r.Set(func() { r.hung = false }) }
}

// Strand keeps the connections that there are open, and passes nothing on, as a router does that has forgotten them.
// New connections work.
func (r *Relay) Strand() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		r.conns[c] = false
	}
}

// Connections returns how many clients are connected.
func (r *Relay) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns) / 2
}

// Cut closes all connections.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *Relay) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.all.Go(func() { r.serve(c) })
	}
}

// track notes a connection. If it must end, track closes it and returns false.
func (r *Relay) track(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusing || r.closed {
		_ = c.Close()
		return false
	}
	r.conns[c] = true
	return true
}

func (r *Relay) leave(c net.Conn) {
	_ = c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

func (r *Relay) dial() (net.Conn, error) {
	r.mu.Lock()
	network, addr := "tcp", r.upstream
	r.mu.Unlock()
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	return net.DialTimeout(network, addr, dialTimeout)
}

func (r *Relay) serve(client net.Conn) {
	if !r.track(client) {
		return
	}
	defer r.leave(client)
	server, err := r.dial()
	if err != nil || !r.track(server) {
		return
	}
	defer r.leave(server)
	requests, replies := r.protocol()
	var there sync.WaitGroup
	there.Go(func() { r.carry(server, client, requests) })
	r.carry(client, server, replies)
	there.Wait()
}

// carry passes on what comes until a side has ended, and then ends both. A side of a silent connection learns nothing.
func (r *Relay) carry(to, from net.Conn, side Side) {
	defer func() {
		if !r.silent(from) {
			_ = to.Close()
			_ = from.Close()
		}
	}()
	for in := bufio.NewReader(from); ; {
		piece, err := side.Read(in)
		if err != nil {
			return
		}
		switch r.decide(from, side, piece) {
		case Cut:
			return
		case Drop:
			continue
		}
		if _, err := to.Write(piece); err != nil {
			return
		}
	}
}

func (r *Relay) silent(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	passes, open := r.conns[c]
	return open && !passes
}

// decide waits while the relay hangs.
func (r *Relay) decide(from net.Conn, side Side, piece []byte) Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.hung && !r.closed {
		r.changed.Wait()
	}
	if passes, open := r.conns[from]; open && !passes {
		return Drop
	}
	if side.Decide == nil {
		return Pass
	}
	return side.Decide(piece)
}
