package node

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
)

const (
	// cleanupLife is how long, beyond the TTL, a clean-up is repeated and its tombstone lives. Within this time, a
	// command that was lost on the way to a hung server or in a proxy may still be executed. If a command is executed
	// even later, the key that it sets ends with its TTL.
	cleanupLife = time.Minute
	// maxCleanups bounds the memory for clean-ups while the node does not answer. With more, acquisitions are refused.
	maxCleanups = 16 << 10

	cleanupMinPause = 20 * time.Millisecond
	cleanupMaxPause = time.Second
)

// cleanup is a release that is repeated until it is answered. It undoes an attempt whose outcome is not known, or
// follows a release that was not answered.
type cleanup struct {
	script.Release
	until   time.Time     // until when the lock stays taken after its release
	life    time.Duration // for how long there may be something to release
	expires time.Time     // the end of life
}

// releaseOf returns the release of the lock that req has or may have. landed says that the acquisition is known to have
// been executed, so that no tombstone is needed.
func (n *Node) releaseOf(req *backend.Request, landed bool, notify script.Notify) script.Release {
	r := script.Release{Attempt: n.attempt(req), Keep: max(0, req.Keep), Certify: req.Fence, Notify: notify}
	if !landed {
		r.Tombstone = req.TTL + cleanupLife
	}
	return r
}

// undoing returns r, the release of req, as a clean-up. A clean-up does not ask for a certificate, because nobody waits
// for one.
func undoing(r script.Release, req *backend.Request) cleanup {
	r.Certify, r.Contended = 0, false // nobody knows whether the lock is contended when the clean-up is repeated
	return cleanup{Release: r, until: time.Now().Add(req.Keep), life: req.TTL + cleanupLife}
}

func (n *Node) undoing(req *backend.Request, landed bool, notify script.Notify) cleanup {
	return undoing(n.releaseOf(req, landed, notify), req)
}

// cleaner repeats clean-ups until the server has answered them. While there are any, it has one goroutine, for which
// Node.Close waits.
type cleaner struct {
	pipeline *pipeline.Pipeline
	closing  chan struct{}

	mu   sync.Mutex
	todo []cleanup
	idle chan struct{} // closed by run when it ends; nil if run is not running
}

// add takes over a clean-up.
func (cl *cleaner) add(c cleanup) {
	c.expires = time.Now().Add(c.life)
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.todo = append(cl.todo, c)
	if cl.idle == nil {
		cl.idle = make(chan struct{})
		go cl.run()
	}
}

func (cl *cleaner) full() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return len(cl.todo) >= maxCleanups
}

func (cl *cleaner) run() {
	pause := cleanupMinPause
	for last := false; ; {
		progress := cl.round()
		if cl.finish(last && !progress) {
			return
		}
		if progress {
			pause = cleanupMinPause
			continue
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-t.C:
		case <-cl.closing:
			last = true // one more try at once
		}
		t.Stop()
		pause = min(2*pause, cleanupMaxPause)
	}
}

// finish ends the run if there are no clean-ups left, or if this was the last try and none was answered.
func (cl *cleaner) finish(last bool) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if len(cl.todo) > 0 && !last {
		return false
	}
	cl.todo = nil
	close(cl.idle)
	cl.idle = nil
	return true
}

// round sends the oldest clean-ups once. It drops those that were answered or have expired, and reports whether there
// were any.
func (cl *cleaner) round() (progress bool) {
	cl.mu.Lock()
	batch := append([]cleanup(nil), cl.todo[:min(len(cl.todo), pipeline.MaxBatch)]...)
	cl.mu.Unlock()

	answered := cl.send(batch)
	now := time.Now()
	unanswered := batch[:0]
	for i, c := range batch {
		if !answered[i] && now.Before(c.expires) {
			unanswered = append(unanswered, c)
		}
	}

	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.todo = append(cl.todo[len(batch):len(cl.todo):len(cl.todo)], unanswered...)
	return len(unanswered) < len(batch)
}

// send sends a batch and reports which clean-ups were answered. Each outcome is known within the timeout of an
// exchange. If the client does not keep to the timeout, the wait ends when the pipeline is closed.
func (cl *cleaner) send(batch []cleanup) []bool {
	calls := make([]pipeline.Call, len(batch))
	ready := make(chan int, len(batch))
	for i, c := range batch {
		c.Keep = max(0, time.Until(c.until))
		calls[i].Command = c.Command()
		calls[i].Quiet = true // mostly the lock is gone, and not contended
		cl.pipeline.Submit(&calls[i], func() { ready <- i })
	}
	answered := make([]bool, len(batch))
	for range batch {
		select {
		case i := <-ready:
			c := &calls[i]
			_, isInt := c.Reply.(int64)
			o, _ := script.ReadOwned(c.Reply)
			answered[i] = c.Err == nil && isInt && !o.Unfinished
		case <-cl.pipeline.Closed():
			return answered
		}
	}
	return answered
}

// wait returns when no clean-ups are left, or when ctx ends. After closing is closed, that is soon, because each
// clean-up gets only one more try.
func (cl *cleaner) wait(ctx context.Context) {
	cl.mu.Lock()
	idle := cl.idle
	cl.mu.Unlock()
	if idle != nil {
		await(ctx, idle)
	}
}
