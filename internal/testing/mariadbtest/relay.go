package mariadbtest

import (
	"bufio"
	"bytes"
	"io"
	"testing"

	"github.com/golocker/locker/internal/testing/testserver"
)

// Relay stands between clients and a server, and is a network that fails.
type Relay struct {
	*testserver.Relay
	lose bool // the next answer is lost
	sent map[string]int
}

// NewRelay starts a relay in front of the server. It ends with the test.
func NewRelay(tb testing.TB, s *Server) *Relay {
	tb.Helper()
	r := &Relay{sent: make(map[string]int)}
	r.Relay = testserver.NewRelay(tb, s.Addr(), r.connection)
	return r
}

// URL returns the URL of a database behind the relay, for the user root.
func (r *Relay) URL(database string) string { return "mysql://root@" + r.Addr() + "/" + database }

// LoseReply lets the next request for a record pass that any client sends, and closes its connection instead of
// answering. What a client asks about the server is no such request.
func (r *Relay) LoseReply() { r.Set(func() { r.lose = true }) }

// Sent returns how many requests have been sent since the last call, by their first words. A request that prepares a
// statement counts as PREPARE, and one that executes it as EXECUTE.
func (r *Relay) Sent() (byWord map[string]int) {
	r.Set(func() { byWord, r.sent = r.sent, make(map[string]int) })
	return byWord
}

// Commands of the protocol.
const (
	query    = 0x03
	prepared = 0x16
	execute  = 0x17
)

// word returns what a packet of a client asks for, or "".
func word(packet []byte) string {
	const header = 4 // a length of three bytes, and the number of the packet, which is 0 if it begins a request
	if len(packet) <= header || packet[header-1] != 0 {
		return ""
	}
	switch packet[header] {
	case query:
		first, _, _ := bytes.Cut(packet[header+1:], []byte(" "))
		return string(bytes.ToUpper(first))
	case prepared:
		return "PREPARE"
	case execute:
		return "EXECUTE"
	}
	return ""
}

func (r *Relay) connection() (requests, replies testserver.Side) {
	asked := false // the lost reply is that of this connection
	requests = testserver.Side{Read: packet, Decide: func(p []byte) testserver.Action {
		w := word(p)
		if w != "" {
			r.sent[w]++
		}
		switch w {
		case "SELECT", "INSERT", "UPDATE", "EXECUTE":
			asked = asked || r.lose
			r.lose = r.lose && !asked
		}
		return testserver.Pass
	}}
	replies = testserver.Side{Read: testserver.Chunks(), Decide: func([]byte) testserver.Action {
		if asked {
			return testserver.Cut
		}
		return testserver.Pass
	}}
	return requests, replies
}

// packet reads one packet: a length of three bytes, a number, and the rest. Connections have no TLS here.
func packet(from *bufio.Reader) ([]byte, error) {
	header := make([]byte, 4)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	p := make([]byte, 4+(int(header[0])|int(header[1])<<8|int(header[2])<<16))
	copy(p, header)
	_, err := io.ReadFull(from, p[4:])
	return p, err
}
