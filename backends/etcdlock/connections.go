package etcdlock

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// answerWithin is how long a member may take to say that it is there, while a request has no answer.
const answerWithin = 500 * time.Millisecond

// connections are those of a client that a configuration opens. A connection over which nothing comes any more, though
// nobody has closed it, is closed here, so that gRPC makes another one or uses those to other members. The keep-alive
// of gRPC takes more than ten seconds, the default TTL of a lock, because gRPC raises shorter times. TCP_USER_TIMEOUT,
// which gRPC sets on Linux, does not help if the kernel of the other side, or something on the way, confirms what
// nobody reads.
type connections struct {
	open  context.Context
	probe func(ctx context.Context) // makes a request that a member answers without the others
	tasks sync.WaitGroup

	mu      sync.Mutex
	all     map[*connection]struct{}
	probing bool
}

// connection knows since when it waits for its peer.
type connection struct {
	net.Conn
	of    *connections
	begun time.Time
	asked atomic.Int64 // when the first bytes were written since the last ones were read, after begun; 0: none were
}

func (c *connection) Write(b []byte) (int, error) {
	c.asked.CompareAndSwap(0, max(1, int64(time.Since(c.begun))))
	return c.Conn.Write(b)
}

func (c *connection) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); n > 0 {
		c.asked.Store(0)
	}
	return n, err
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// silent reports whether nothing has come for at least d since something was sent.
func (c *connection) silent(d time.Duration) bool {
	asked := c.asked.Load()
	return asked != 0 && time.Since(c.begun)-time.Duration(asked) >= d
}

func (s *connections) add(conn net.Conn) *connection {
	c := &connection{Conn: conn, of: s, begun: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[*connection]struct{})
	}
	s.all[c] = struct{}{}
	return c
}

// silent returns the connections over which nothing has come for at least d since something was sent.
func (s *connections) silent(d time.Duration) (silent []*connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		if c.silent(d) {
			silent = append(silent, c)
		}
	}
	return silent
}

// suspect is told that a request was not answered. If nothing has come over a connection for a while, the members are
// asked over all of them whether they are there. Members that have no leader say so, too, and keep their connections. A
// nil receiver does nothing.
func (s *connections) suspect() {
	if s == nil || len(s.silent(answerWithin)) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probing || s.open.Err() != nil {
		return
	}
	s.probing = true
	n := 2 * len(s.all) // gRPC takes the connections in turn, and other requests come in between
	s.tasks.Go(func() { s.examine(n) })
}

func (s *connections) examine(n int) {
	ctx, cancel := context.WithTimeout(s.open, answerWithin)
	defer cancel()
	var probes sync.WaitGroup
	for range n {
		probes.Go(func() { s.probe(ctx) })
	}
	probes.Wait()
	for _, c := range s.silent(2 * answerWithin) {
		_ = c.Close()
	}
	s.mu.Lock()
	s.probing = false
	s.mu.Unlock()
}

// wait returns when no examination is in progress. It is called after the end of open. A nil receiver does nothing.
func (s *connections) wait() {
	if s == nil {
		return
	}
	s.mu.Lock()   // suspect may be about to start one
	s.mu.Unlock() //nolint:staticcheck // the section is empty on purpose
	s.tasks.Wait()
}

// transport makes the connections of a client. Each TLS handshake uses what the files contain at that time.
type transport struct {
	all      *connections
	settings func() *tls.Config // nil: without TLS
}

func (t transport) credentials() credentials.TransportCredentials {
	if t.settings == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(t.settings())
}

// ClientHandshake implements credentials.TransportCredentials.
func (t transport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (
	net.Conn, credentials.AuthInfo, error,
) {
	conn, info, err := t.credentials().ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return t.all.add(conn), info, nil
}

// ServerHandshake implements credentials.TransportCredentials.
func (t transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

// Info implements credentials.TransportCredentials.
func (t transport) Info() credentials.ProtocolInfo {
	if t.settings == nil {
		return insecure.NewCredentials().Info()
	}
	return credentials.NewTLS(nil).Info()
}

// Clone implements credentials.TransportCredentials.
func (t transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName implements credentials.TransportCredentials.
func (t transport) OverrideServerName(string) error { return nil }
