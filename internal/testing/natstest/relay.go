//go:build unix

package natstest

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"strings"

	"github.com/golocker/locker/internal/testing/testserver"
)

// faults are what goes wrong between clients and a server, besides what a relay does by itself.
type faults struct {
	losing bool   // the answer to the next request is lost
	drop   string // messages on subjects that begin with it are lost; empty: none
}

func (f *faults) connection() (requests, replies testserver.Side) {
	lost := false // the next answer on this connection
	requests = testserver.Side{Read: testserver.Chunks(), Decide: func(b []byte) testserver.Action {
		if f.losing && bytes.Contains(b, []byte("PUB ")) {
			f.losing, lost = false, true
		}
		return testserver.Pass
	}}
	replies = testserver.Side{Read: read, Decide: func(b []byte) testserver.Action {
		subject, _ := message(b)
		switch {
		case lost && strings.HasPrefix(subject, "_INBOX."):
			return testserver.Cut
		case f.drop != "" && strings.HasPrefix(subject, f.drop):
			return testserver.Drop
		}
		return testserver.Pass
	}}
	return requests, replies
}

// read reads what a server sends next: a line and, if that announces a message, the message.
func read(from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadBytes('\n')
	if subject, size := message(line); err == nil && subject != "" {
		body := make([]byte, size+len("\r\n"))
		_, err = io.ReadFull(from, body)
		line = append(line, body...)
	}
	return line, err
}

// message returns the subject and the size of the message that a line announces, or an empty subject.
func message(b []byte) (subject string, size int) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 4 || fields[0] != "MSG" && fields[0] != "HMSG" {
		return "", 0
	}
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return "", 0
	}
	return fields[1], size
}
