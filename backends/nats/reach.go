package nats

import (
	"sync/atomic"
	"time"

	natsclient "github.com/nats-io/nats.go"
)

// reach leaves a server through which nothing is answered.
//
// A server that is cut off from the others of its cluster keeps its clients, but has no leader to pass their requests
// to. The client library stays with it, although other servers may have a leader. reach makes the library connect to
// the next server. It does so with a connection that belongs to the Backend only.
type reach struct {
	conn  *natsclient.Conn // nil: stay
	asked atomic.Int64     // when the first request was sent that was not answered, since birth; 0: there is none
}

// deaf is how long a server may answer nothing. To elect a leader takes a cluster longer, but to connect to another
// server meanwhile costs little.
const deaf = 3 * time.Second

var birth = time.Now().Add(-time.Second)

// asks is called before each request.
func (r *reach) asks() { r.asked.CompareAndSwap(0, int64(time.Since(birth))) }

// heard is called after each answer.
func (r *reach) heard() { r.asked.Store(0) }

// missed is called after each request that was not answered.
func (r *reach) missed() {
	now, since := int64(time.Since(birth)), r.asked.Load()
	if r.conn == nil || since == 0 || now-since < int64(deaf) || !r.asked.CompareAndSwap(since, now) {
		return
	}
	_ = r.conn.ForceReconnect() // an error says that the connection is closed
}
