//go:build unix

package etcdtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"testing"

	"github.com/golocker/locker/internal/testing/testserver"
)

// Relay is a connection between clients and a member that can fail. It understands the frames of HTTP/2.
type Relay struct {
	*testserver.Relay
	losing int // the answer to the request that comes after so many others is lost; 0: none is
	now    int // how often Swallow was called
}

// NewRelay starts a relay to the member at upstream, until the test ends.
func NewRelay(tb testing.TB, upstream string) *Relay {
	tb.Helper()
	r := &Relay{}
	r.Relay = testserver.NewRelay(tb, upstream, r.connection)
	return r
}

// Lose makes the relay pass the n-th request from now on, counted from 1, and close the connection instead of passing
// the answer.
func (r *Relay) Lose(n int) { r.Set(func() { r.losing = n }) }

// Swallow makes the connections that there are pass nothing any more, and stay open. New ones work.
func (r *Relay) Swallow() { r.Set(func() { r.now++ }) }

// The parts of HTTP/2 that the relay knows.
const (
	preface     = 24 // bytes that a client sends before its frames
	frameHeader = 9
	data        = 0 // the kind of a frame with a message
	headers     = 1
)

func (r *Relay) connection() (requests, answers testserver.Side) {
	victim := uint32(0) // the stream whose answer is lost
	begun := false
	born := -1 // what r.now was when the first bytes came
	swallowed := func() bool {
		if born < 0 {
			born = r.now
		}
		return born != r.now
	}
	requests = testserver.Side{
		Read: func(from *bufio.Reader) ([]byte, error) {
			if begun {
				return frame(from)
			}
			begun = true
			first := make([]byte, preface) // its fourth byte, a space, is the kind of no frame
			_, err := io.ReadFull(from, first)
			return first, err
		},
		Decide: func(b []byte) testserver.Action {
			if swallowed() {
				return testserver.Drop
			}
			if kind, stream := parse(b); kind == data && r.losing > 0 {
				if r.losing--; r.losing == 0 {
					victim = stream
				}
			}
			return testserver.Pass
		},
	}
	answers = testserver.Side{Read: frame, Decide: func(b []byte) testserver.Action {
		if swallowed() {
			return testserver.Drop
		}
		if kind, stream := parse(b); victim != 0 && stream == victim && kind <= headers {
			return testserver.Cut
		}
		return testserver.Pass
	}}
	return requests, answers
}

// frame reads a whole frame.
func frame(from *bufio.Reader) ([]byte, error) {
	head, err := from.Peek(frameHeader)
	if err != nil {
		return nil, err
	}
	b := make([]byte, frameHeader+int(head[0])<<16+int(head[1])<<8+int(head[2]))
	_, err = io.ReadFull(from, b)
	return b, err
}

// parse returns the kind of a frame, and its stream.
func parse(frame []byte) (kind byte, stream uint32) {
	return frame[3], binary.BigEndian.Uint32(frame[5:]) &^ (1 << 31)
}
