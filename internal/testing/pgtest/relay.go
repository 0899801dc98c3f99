package pgtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"testing"

	"github.com/golocker/locker/internal/testing/testserver"
)

// Relay stands between clients and a server, and is a network that fails.
type Relay struct {
	*testserver.Relay
	lose bool // the next answer is lost
	deaf bool // notifications are lost
}

// NewRelay starts a relay in front of the server. It ends with the test.
func NewRelay(tb testing.TB, s *Server) *Relay {
	tb.Helper()
	r := &Relay{}
	r.Relay = testserver.NewRelay(tb, s.Socket(), r.connection)
	return r
}

// URL returns the URL of the database postgres behind the relay for a user.
func (r *Relay) URL(user string) string {
	return "postgres://" + user + "@" + r.Addr() + "/postgres?sslmode=disable"
}

// LoseReply lets the next request pass that any client sends, and closes its connection instead of answering.
func (r *Relay) LoseReply() { r.Set(func() { r.lose = true }) }

// Deafen loses all notifications until restore is called.
func (r *Relay) Deafen() (restore func()) {
	r.Set(func() { r.deaf = true })
	return func() { r.Set(func() { r.deaf = false }) }
}

// notification is the type of a message of the server.
const notification = 'A'

func (r *Relay) connection() (requests, replies testserver.Side) {
	asked := false // the lost reply is that of this connection
	requests = testserver.Side{Read: testserver.Chunks(), Decide: func([]byte) testserver.Action {
		asked = asked || r.lose
		r.lose = r.lose && !asked
		return testserver.Pass
	}}
	replies = testserver.Side{Read: message, Decide: func(m []byte) testserver.Action {
		switch {
		case asked:
			return testserver.Cut
		case r.deaf && m[0] == notification:
			return testserver.Drop
		}
		return testserver.Pass
	}}
	return requests, replies
}

// message reads one message of a server: a type, a length that includes itself, and the rest.
func message(from *bufio.Reader) ([]byte, error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
	_, err := io.ReadFull(from, body)
	return slices.Concat(header, body), err
}
