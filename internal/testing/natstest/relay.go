//go:build unix

package natstest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// relay passes bytes between clients and a server whose address may change.
type relay struct {
	listener net.Listener
	losing   atomic.Bool            // the answer to the next request is lost
	drop     atomic.Pointer[string] // messages on subjects that begin with it are lost; nil: none
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
		buf := make([]byte, 32<<10)
		for {
			n, err := client.Read(buf)
			if bytes.Contains(buf[:n], []byte("PUB ")) && r.losing.CompareAndSwap(true, false) {
				lost.Store(true)
			}
			if _, failed := server.Write(buf[:n]); failed != nil || err != nil {
				return
			}
		}
	})
	in := bufio.NewReader(server)
	for {
		frame, subject, err := read(in)
		if err != nil || lost.Load() && strings.HasPrefix(subject, "_INBOX.") {
			return
		}
		if drop := r.drop.Load(); drop != nil && strings.HasPrefix(subject, *drop) {
			continue
		}
		if _, err := client.Write(frame); err != nil {
			return
		}
	}
}

// read reads what a server sends next: a line and, if that announces a message, the message. subject is that of the
// message.
func read(in *bufio.Reader) (frame []byte, subject string, err error) {
	frame, err = in.ReadBytes('\n')
	fields := strings.Fields(string(frame))
	if err != nil || len(fields) < 4 || fields[0] != "MSG" && fields[0] != "HMSG" {
		return frame, "", err
	}
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return nil, "", err
	}
	body := make([]byte, size+len("\r\n"))
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, "", err
	}
	return append(frame, body...), fields[1], nil
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
