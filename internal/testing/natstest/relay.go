//go:build unix

package natstest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// relay passes bytes between clients and a server whose address may change.
type relay struct {
	listener net.Listener
	losing   atomic.Bool // the answer to the next message is lost
	over     sync.WaitGroup

	mu       sync.Mutex
	upstream string
	refusing bool
	conns    map[net.Conn]bool
}

func newRelay(tb testing.TB) *relay {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("natstest: %v", err)
	}
	r := &relay{listener: l, conns: make(map[net.Conn]bool)}
	r.over.Go(r.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		r.refuse(true)
		r.over.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.listener.Addr().String() }

func (r *relay) to(upstream string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstream = upstream
}

func (r *relay) refuse(on bool) {
	r.mu.Lock()
	r.refusing = on
	r.mu.Unlock()
	if on {
		r.cut()
	}
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *relay) lose() { r.losing.Store(true) }

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.over.Go(func() { r.serve(client) })
	}
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	r.mu.Lock()
	upstream := r.upstream
	r.mu.Unlock()
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close()
	if !r.add(client, server) {
		return
	}
	defer r.remove(client, server)
	var lost atomic.Bool // the next answer on this connection
	r.over.Go(func() {
		defer client.Close()
		defer server.Close()
		pass(server, client, func(data []byte) bool {
			if bytes.Contains(data, []byte("PUB ")) && r.losing.CompareAndSwap(true, false) {
				lost.Store(true)
			}
			return true
		})
	})
	pass(client, server, func(data []byte) bool { return !lost.Load() || !bytes.Contains(data, []byte("MSG ")) })
}

// pass copies from one connection to another until one is closed, or until look returns false.
func pass(to, from net.Conn, look func(data []byte) bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !look(buf[:n]) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *relay) add(conns ...net.Conn) bool {
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

func (r *relay) remove(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}
