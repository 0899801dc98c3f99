package redlock

import (
	"sync"
	"time"

	"github.com/golocker/locker/internal/node"
)

// room is where a round or a poll waits for the nodes. Rooms are used again: their channels and timers would be a good part
// of what a lock costs. They are a backend's own, because those of tests in virtual time must not leave their bubble.
type room struct {
	ready chan *node.Call // has room for an acquisition and a raise of every node
	late  chan int        // has room for every node; see poll.late
	timer *time.Timer
}

type rooms struct {
	mu    sync.Mutex
	empty []*room
}

// maxRooms is how many are kept.
const maxRooms = 256

// enter returns a room for n nodes whose timer ends after limit.
func (r *rooms) enter(n int, limit time.Duration) *room {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.empty) - 1
	if last < 0 {
		return &room{make(chan *node.Call, 2*n), make(chan int, n), time.NewTimer(limit)}
	}
	one := r.empty[last]
	r.empty = r.empty[:last]
	one.timer.Reset(limit)
	return one
}

// leave gives one back. used says that a call may still come through it: then it is nobody's.
func (r *rooms) leave(one *room, used bool) {
	one.timer.Stop()
	if used {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.empty) < maxRooms {
		r.empty = append(r.empty, one)
	}
}
