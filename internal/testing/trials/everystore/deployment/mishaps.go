package deployment

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// Mishaps counts what has happened to requests to a store that is reached over HTTP, beside the faults of a trial. On
// the way of each process to the store, requests and replies are late now and then, and requests are sent twice, as
// libraries and load balancers do that repeat a request whose answer was lost. The client gets the second answer.
type Mishaps struct{ Late, LateReplies, Repeated atomic.Int64 }

// String implements fmt.Stringer.
func (m *Mishaps) String() string {
	if m == nil {
		return "no mishaps of requests"
	}
	return fmt.Sprintf("%d requests late, %d replies, %d repeated", m.Late.Load(), m.LateReplies.Load(), m.Repeated.Load())
}

const (
	// rare is one in how many requests meets each mishap.
	rare = 25
	// latest is how late a request or its reply may be. It is longer than the TTL of a trial, which is the time for
	// which an acquisition waits.
	latest = 2500 * time.Millisecond
)

// relay starts a relay to the HTTP server at an address, and returns its own. It ends with the test.
func (m *Mishaps) relay(t testing.TB, upstream string) (addr string) {
	over, end := context.WithCancel(context.Background())
	to := &http.Transport{DisableCompression: true}
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has left before it has sent all
		}
		send := func() *http.Response {
			again := r.Clone(over) // and not its own context: what was sent goes on when the client leaves
			again.RequestURI, again.URL.Scheme, again.URL.Host = "", "http", upstream
			again.Body, again.ContentLength, again.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
			reply, err := to.RoundTrip(again)
			if err != nil {
				panic(http.ErrAbortHandler) // the connection ends
			}
			return reply
		}
		m.late(over, &m.Late)
		reply := send()
		if r.Method != http.MethodGet && r.Method != http.MethodHead && rand.IntN(rare) == 0 {
			m.Repeated.Add(1)
			_, _ = io.Copy(io.Discard, reply.Body)
			_ = reply.Body.Close()
			reply = send()
		}
		defer reply.Body.Close()
		m.late(over, &m.LateReplies)
		for name, values := range reply.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(reply.StatusCode)
		if _, err := io.Copy(w, reply.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(func() {
		end()
		relay.Close()
		to.CloseIdleConnections()
	})
	return relay.Listener.Addr().String()
}

// late waits, now and then.
func (m *Mishaps) late(ctx context.Context, count *atomic.Int64) {
	if rand.IntN(rare) > 0 {
		return
	}
	count.Add(1)
	select {
	case <-time.After(rand.N(latest)):
	case <-ctx.Done():
	}
}
