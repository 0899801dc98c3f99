package nats

import (
	"sync"
	"time"
)

// reach leaves a server through which nothing is stored.
//
// A server that is cut off from the others of its cluster keeps its clients, and answers their pings. The client
// library stays with it, although other servers may have a leader. If it was the leader of the bucket, it still answers
// reads for twenty seconds, and refuses writes whose condition fails. It acknowledges no write, because that takes a
// majority. reach makes the library connect to the next server. It does so with a connection that belongs to the
// Backend only.
type reach struct {
	leave func() error // connects to the next server; nil: stay

	mu     sync.Mutex
	good   time.Time // when a write was acknowledged last, or the last server was left
	missed time.Time // when the first request began that was not answered since then; zero: there is none
}

// deaf is how long a server may leave requests unanswered, and store nothing. To elect a leader takes a cluster longer,
// but to connect to another server meanwhile costs little.
const deaf = 3 * time.Second

// stored is called after each write that was acknowledged.
func (r *reach) stored() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.good, r.missed = time.Now(), time.Time{}
}

// miss is called after each request that was not answered. The time since the first of them began counts, but not what
// was before the last write that was stored, or before the last server was left.
func (r *reach) miss(began time.Time) {
	if r.bad(began) {
		_ = r.leave() // an error says that the connection is closed
	}
}

// bad reports whether the server is to be left now.
func (r *reach) bad(began time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if began.Before(r.good) {
		began = r.good
	}
	if r.missed.IsZero() {
		r.missed = began
	}
	if r.leave == nil || time.Since(r.missed) < deaf {
		return false
	}
	r.good = time.Now()
	r.missed = r.good
	return true
}
