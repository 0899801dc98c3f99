package pgtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Relay stands between clients and a server, and is a network that fails.
type Relay struct {
	upstream string
	listener net.Listener

	mu     sync.Mutex
	gate   *sync.Cond
	conns  map[net.Conn]bool
	hung   bool // bytes wait
	refuse bool // connections end at once
	lose   bool // the next answer is lost
	deaf   bool // notifications are lost
	closed bool
	all    sync.WaitGroup
}

// NewRelay starts a relay in front of the server. It ends with the test.
func NewRelay(tb testing.TB, s *Server) *Relay {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	r := &Relay{upstream: s.Socket(), listener: l, conns: make(map[net.Conn]bool)}
	r.gate = sync.NewCond(&r.mu)
	r.all.Go(r.accept)
	tb.Cleanup(r.close)
	return r
}

// URL returns the URL of the database postgres behind the relay for a user.
func (r *Relay) URL(user string) string {
	return "postgres://" + user + "@" + r.listener.Addr().String() + "/postgres?sslmode=disable"
}

// Hang keeps all bytes, in both directions, until resume is called.
func (r *Relay) Hang() (resume func()) {
	r.set(func() { r.hung = true })
	return func() { r.set(func() { r.hung = false }) }
}

// Down ends all connections, and new ones, until up is called.
func (r *Relay) Down() (up func()) {
	r.set(func() { r.refuse = true })
	r.Cut()
	return func() { r.set(func() { r.refuse = false }) }
}

// LoseReply lets the next request pass that any client sends, and closes its connection instead of answering.
func (r *Relay) LoseReply() { r.set(func() { r.lose = true }) }

// Deafen loses all notifications until restore is called.
func (r *Relay) Deafen() (restore func()) {
	r.set(func() { r.deaf = true })
	return func() { r.set(func() { r.deaf = false }) }
}

// Cut ends all connections.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *Relay) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	r.gate.Broadcast()
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

// enter notes a connection. It returns false if the connection must end.
func (r *Relay) enter(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse || r.closed {
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

func (r *Relay) serve(client net.Conn) {
	if !r.enter(client) {
		return
	}
	defer r.leave(client)
	server, err := net.DialTimeout("unix", r.upstream, time.Minute)
	if err != nil || !r.enter(server) {
		return
	}
	defer r.leave(server)
	var both sync.WaitGroup
	asked := false // the lost reply is that of this connection; guarded by mu
	both.Go(func() {
		r.copy(server, client, chunk(client), func([]byte) action {
			asked = asked || r.lose
			r.lose = r.lose && !asked
			return pass
		})
	})
	both.Go(func() {
		r.copy(client, server, message(server), func(m []byte) action {
			switch {
			case asked:
				return cut
			case r.deaf && m[0] == notification:
				return drop
			}
			return pass
		})
	})
	both.Wait()
}

// notification is the type of a message of the server.
const notification = 'A'

// action is what happens to bytes.
type action int

const (
	pass action = iota
	drop
	cut // ends the connection
)

// chunk reads whatever arrives.
func chunk(from net.Conn) func() ([]byte, error) {
	b := make([]byte, 64<<10)
	return func() ([]byte, error) {
		n, err := from.Read(b)
		return b[:n], err
	}
}

// message reads one message of a server: a type, a length that includes itself, and the rest.
func message(from net.Conn) func() ([]byte, error) {
	buffered := bufio.NewReader(from)
	return func() ([]byte, error) {
		header := make([]byte, 5)
		if _, err := io.ReadFull(buffered, header); err != nil {
			return nil, err
		}
		m := append(header, make([]byte, binary.BigEndian.Uint32(header[1:])-4)...)
		_, err := io.ReadFull(buffered, m[5:])
		return m, err
	}
}

// copy passes on what read returns until a side has ended, and then ends both. decide is called with mu held.
func (r *Relay) copy(to, from net.Conn, read func() ([]byte, error), decide func(b []byte) action) {
	defer to.Close()
	defer from.Close()
	for {
		b, err := read()
		if err != nil {
			return
		}
		r.mu.Lock()
		for r.hung && !r.closed {
			r.gate.Wait()
		}
		what := decide(b)
		r.mu.Unlock()
		switch what {
		case cut:
			return
		case drop:
			continue
		}
		if _, err := to.Write(b); err != nil {
			return
		}
	}
}

func (r *Relay) close() {
	_ = r.listener.Close()
	r.set(func() { r.closed = true })
	r.Cut()
	r.all.Wait()
}
