package nats

import (
	"sync/atomic"
	"time"

	natsclient "github.com/nats-io/nats.go"
)

// reach leaves a server through which nothing is stored.
//
// A server that is cut off from the others of its cluster keeps its clients, and answers their pings. The client
// library stays with it, although other servers may have a leader. If it was the leader of the bucket, it still answers
// reads and refuses writes for twenty seconds, and only acknowledges none, because that takes a majority. reach makes
// the library connect to the next server. It does so with a connection that belongs to the Backend only.
type reach struct {
	conn   *natsclient.Conn // nil: stay
	missed atomic.Int64     // see miss; since birth; 0: nothing is missing
}

// deaf is how long a server may leave requests unanswered, and store nothing. To elect a leader takes a cluster longer,
// but to connect to another server meanwhile costs little.
const deaf = 3 * time.Second

var birth = time.Now().Add(-time.Second)

// stored is called after each write that was acknowledged.
func (r *reach) stored() {
	if r.missed.Load() != 0 {
		r.missed.Store(0)
	}
}

// miss is called after each request that was not answered. The time since the first of them began counts, or since the
// last server was left, as long as nothing is stored.
func (r *reach) miss(began time.Time) {
	_ = r.missed.CompareAndSwap(0, int64(began.Sub(birth)))
	now, since := int64(time.Since(birth)), r.missed.Load()
	if r.conn == nil || since == 0 || now-since < int64(deaf) || !r.missed.CompareAndSwap(since, now) {
		return
	}
	_ = r.conn.ForceReconnect() // an error says that the connection is closed
}
