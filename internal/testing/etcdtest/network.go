//go:build unix

package etcdtest

import (
	"bufio"
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/golocker/locker/internal/testing/testserver"
)

// network connects the members of a cluster. Each member is reached by the others through a relay, and says in the head
// of its requests who it is. So both directions of its connections can be cut.
type network struct {
	mu       sync.Mutex
	isolated map[string]bool // by the address at which a member listens, and by that of its relay
}

func newNetwork() *network { return &network{isolated: make(map[string]bool)} }

// relay returns the address at which the other members reach the one that listens at upstream.
func (n *network) relay(tb testing.TB, upstream string) string {
	tb.Helper()
	return testserver.NewRelay(tb, upstream, func() (requests, answers testserver.Side) {
		begun, from := false, "" // from is empty in requests that concern no data
		read, decide := testserver.Chunks(), func([]byte) testserver.Action { return n.decide(from, upstream) }
		requests = testserver.Side{
			Read: func(in *bufio.Reader) ([]byte, error) {
				if begun {
					return read(in)
				}
				return readHead(in)
			},
			Decide: func(b []byte) testserver.Action {
				if !begun { // all requests of a connection are from the same member
					begun, from = true, sender(b)
				}
				return decide(b)
			},
		}
		return requests, testserver.Side{Read: testserver.Chunks(), Decide: decide}
	}).Addr()
}

// readHead reads the head of the first request of a connection.
func readHead(in *bufio.Reader) (head []byte, err error) {
	for {
		line, err := in.ReadBytes('\n')
		head = append(head, line...)
		if err != nil || len(bytes.TrimSpace(line)) == 0 {
			return head, err
		}
	}
}

// sender returns the address of the relay of the member that sent a request, if its head tells it.
func sender(head []byte) string {
	for line := range strings.Lines(string(head)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(name, "X-PeerURLs") {
			return strings.TrimPrefix(strings.TrimSpace(value), "http://")
		}
	}
	return ""
}

// decide cuts a connection of an isolated member when it is next used.
func (n *network) decide(from, to string) testserver.Action {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isolated[from] || n.isolated[to] {
		return testserver.Cut
	}
	return testserver.Pass
}

// isolate parts a member from all others, or ends that.
func (n *network) isolate(isolated bool, m *Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isolated[m.listen], n.isolated[m.peer] = isolated, isolated
}
