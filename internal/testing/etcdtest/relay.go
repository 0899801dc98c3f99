//go:build unix

package etcdtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// Relay is a connection between clients and a member that can fail. It understands the frames of HTTP/2.
type Relay struct {
	listener net.Listener
	upstream string
	over     sync.WaitGroup

	mu       sync.Mutex
	refusing bool
	losing   int // the answer to the request that comes after so many others is lost; 0: none is
	conns    map[net.Conn]bool
}

// NewRelay starts a relay to the member at upstream, until the test ends.
func NewRelay(tb testing.TB, upstream string) *Relay {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	r := &Relay{listener: l, upstream: upstream, conns: make(map[net.Conn]bool)}
	r.over.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			r.over.Go(func() { r.serve(client) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		r.Refuse()
		r.over.Wait()
	})
	return r
}

// Addr returns the address for clients.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Refuse closes all connections, and those that are made until Accept is called.
func (r *Relay) Refuse() {
	r.mu.Lock()
	r.refusing = true
	r.mu.Unlock()
	r.Cut()
}

// Accept ends the effect of Refuse.
func (r *Relay) Accept() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusing = false
}

// Cut closes all connections.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}

// Lose makes the relay pass the n-th request from now on, counted from 1, and close the connection instead of passing
// the answer.
func (r *Relay) Lose(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.losing = n
}

// lost counts a request, and reports whether its answer is to be lost.
func (r *Relay) lost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.losing == 0 {
		return false
	}
	r.losing--
	return r.losing == 0
}

func (r *Relay) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	if !r.add(client, server) {
		return
	}
	defer r.remove(client, server)
	var mu sync.Mutex
	victim := uint32(0) // the stream whose answer is lost
	r.over.Go(func() {
		defer client.Close()
		defer server.Close()
		in := bufio.NewReader(client)
		if _, err := io.CopyN(server, in, preface); err != nil {
			return
		}
		frames(server, in, func(kind byte, stream uint32) bool {
			if kind == data && r.lost() {
				mu.Lock()
				victim = stream
				mu.Unlock()
			}
			return true
		})
	})
	frames(client, bufio.NewReader(server), func(kind byte, stream uint32) bool {
		mu.Lock()
		defer mu.Unlock()
		return victim == 0 || stream != victim || kind > headers
	})
}

// The parts of HTTP/2 that the relay knows.
const (
	preface     = 24 // bytes that a client sends before its frames
	frameHeader = 9
	data        = 0 // the kind of a frame with a message
	headers     = 1
)

// frames copies frames until a connection is closed, or until pass returns false.
func frames(to io.Writer, from *bufio.Reader, pass func(kind byte, stream uint32) bool) {
	for {
		head, err := from.Peek(frameHeader)
		if err != nil {
			return
		}
		size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if !pass(head[3], binary.BigEndian.Uint32(head[5:])&^(1<<31)) {
			return
		}
		if _, err := io.CopyN(to, from, frameHeader+size); err != nil {
			return
		}
	}
}

func (r *Relay) add(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusing {
		return false
	}
	for _, c := range conns {
		r.conns[c] = true
	}
	return true
}

func (r *Relay) remove(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}
