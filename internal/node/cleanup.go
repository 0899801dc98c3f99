package node

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

const (
	// cleanupLife is how long, beyond the TTL, a clean-up is retried, and how long its tombstone lives: a command that
	// was lost on the way to a hung server or in a proxy may still be executed within this time. After it, the TTL of a
	// key that lands even later is the last resort.
	cleanupLife = time.Minute
	// maxCleanups bounds the memory for clean-ups while the node does not answer. Acquisitions are refused beyond it.
	maxCleanups = 16 << 10

	cleanupMinPause = 20 * time.Millisecond
	cleanupMaxPause = time.Second
)

// cleanup is the undoing of an attempt whose outcome is not known, or a release that was not answered.
type cleanup struct {
	keys   keys
	token  string
	number string // of the node, see alias.lua
	ttl    time.Duration
	// landed: the acquisition is known to have been executed, so that no tombstone is needed.
	landed  bool
	wakes   wakes
	turn    string    // for wakesTurn: the ID of the Turn that it was acquired by, if any
	leaves  bool      // for wakesTurn: the Turn ends without a lease
	keep    time.Time // until when the lock stays taken nevertheless
	expires time.Time
}

// wakes says who is told of a lock that is given back.
type wakes uint8

const (
	wakesNobody wakes = iota // an attempt that failed, which others did not wait for
	wakesPolls               // those that called Notify
	wakesNext                // FIFO: the next in the queue, who gets it
	wakesTurn                // whoever has the turn to ask for it, or the next to have it
)

// cleaner retries clean-ups until the server has answered them. It runs one goroutine, while there is something to do;
// Node.Close waits for it.
type cleaner struct {
	queue   *queue
	closing chan struct{}

	mu   sync.Mutex
	todo []cleanup
	idle chan struct{} // closed by run when it ends; nil while there is none
}

// add takes over a clean-up.
func (cl *cleaner) add(c cleanup) {
	c.expires = time.Now().Add(c.ttl + cleanupLife)
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
			last = true // one more try, now
		}
		t.Stop()
		pause = min(2*pause, cleanupMaxPause)
	}
}

// finish ends the run if nothing is left to do, or if this was the last try and it was in vain.
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

// round sends the oldest clean-ups once and drops those that were answered or have expired. It reports whether there
// were any.
func (cl *cleaner) round() (progress bool) {
	cl.mu.Lock()
	batch := append([]cleanup(nil), cl.todo[:min(len(cl.todo), maxBatch)]...)
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

// send sends a batch and reports which of it were answered. Each outcome comes within the exchange's timeout; with a
// client that does not keep to it, the wait ends when the queue is closed.
func (cl *cleaner) send(batch []cleanup) []bool {
	answered := make([]bool, len(batch))
	ready := make(chan *Call, len(batch))
	under := 0
	for i, c := range batch {
		script, cmd := c.command("0")
		call := &Call{Tag: i, script: script, cmd: cmd, ready: ready}
		if cl.queue.submit(call) == nil { // refused: tried again in the next round
			under++
		}
	}
	for ; under > 0; under-- {
		select {
		case call := <-ready:
			r, isInt := call.reply.(int64)
			answered[call.Tag] = call.err == nil && isInt && r&again == 0
		case <-cl.queue.ctx.Done():
			return answered
		}
	}
	return answered
}

// command builds the release. token is that of the lease, for a certificate that no newer one was issued.
func (c *cleanup) command(token string) (*script, drivers.Command) {
	tombstone := "0"
	if !c.landed {
		tombstone = milliseconds(c.ttl + cleanupLife)
	}
	args := tombstone + ":" + milliseconds(max(0, time.Until(c.keep))) + ":" + token
	k := c.keys
	gone := k.gone + c.token
	switch c.wakes {
	case wakesNext:
		return handoverScript, handoverScript.command([]string{k.lock, gone, k.fence, k.queue(), k.waiters()}, c.token+c.number, args)
	case wakesTurn:
		args = c.token + c.number + ":" + args + ":" + c.turn
		if c.leaves {
			args += ":"
		}
		return turnReleaseScript, turnReleaseScript.command(
			[]string{k.lock, gone, k.fence, k.turn(), k.queue(), k.waiters()}, args)
	case wakesPolls:
		return releaseScript, releaseScript.command([]string{k.lock, gone, k.fence}, c.token+c.number, args+":"+k.free())
	default:
		return releaseScript, releaseScript.command([]string{k.lock, gone, k.fence}, c.token+c.number, args+":")
	}
}

// wait returns when nothing is left to do, or ctx has ended. Once closing is closed that is soon: what is left gets one
// more try.
func (cl *cleaner) wait(ctx context.Context) {
	cl.mu.Lock()
	idle := cl.idle
	cl.mu.Unlock()
	if idle != nil {
		await(ctx, idle)
	}
}

// milliseconds renders d for Redis, rounded up: a key may live longer than the lease on it, never shorter.
func milliseconds(d time.Duration) string {
	if d == locker.DefaultTTL {
		return defaultTTL
	}
	return strconv.FormatInt(inMilliseconds(d), 10)
}

var defaultTTL = strconv.FormatInt(inMilliseconds(locker.DefaultTTL), 10)

func inMilliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
