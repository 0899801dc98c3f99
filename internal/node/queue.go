package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

const (
	// maxLanes is how many batches one node has in flight at most, and so how many goroutines, and with most clients
	// connections, a node that hangs can occupy. More than one, so that one connection that went silent does not stop
	// the others.
	maxLanes = 4
	// maxBatch bounds one round trip. Larger ones gain nothing more and make the first reply late.
	maxBatch = 128
	// maxPending bounds the commands that wait for a lane while the node does not answer.
	maxPending = 16 << 10

	minRest = 10 * time.Millisecond
	maxRest = 100 * time.Millisecond
)

// queue sends the commands of all callers of a node. A command that finds a lane free goes out at once; those that
// arrive while all are busy are sent together by the first that becomes free.
//
// The caller of a command never waits inside the driver, whose client may ignore the end of a context: it waits for
// the call to come through its channel, and may leave before. A command that was not sent by then vanishes; one that was
// is resolved when its reply comes, by the late function given to leave.
type queue struct {
	driver  drivers.Driver
	timeout time.Duration // of one exchange

	mu      sync.Mutex
	pending []*Call
	lanes   int
	closed  bool
	// Until restUntil commands other than releases are refused with restFor; see outcome.
	rest      time.Duration
	restUntil time.Time
	restFor   error
	idle      chan struct{} // closed when no lane runs; nil unless drain has asked

	ctx    context.Context // of every exchange
	cancel context.CancelFunc
}

var errFull = errors.New("too many commands wait for an answer")

func newQueue(d drivers.Driver, timeout time.Duration) *queue {
	q := &queue{driver: d, timeout: timeout}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// submit queues a command. It is resolved by a lane, within the exchange's timeout of being sent.
func (q *queue) submit(c *Call) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return locker.ErrClosed
	}
	if len(q.pending) >= maxPending {
		return errFull
	}
	if !c.frees() && time.Now().Before(q.restUntil) {
		return q.restFor
	}
	if q.lanes < maxLanes {
		q.lanes++
		c.state = sent // as good as: the lane does nothing else first
		go q.lane([]*Call{c})
		return nil
	}
	q.pending = append(q.pending, c)
	return nil
}

// frees reports whether c is a release. Releases are sent at rest, too, and so find out whether the node is back: refused,
// one would be left to the cleaner, whose next try may be a second away, while somebody waits for the lock. They are few,
// for a node that is down grants nothing.
func (c *Call) frees() bool {
	switch c.script {
	case releaseScript, handoverScript, turnReleaseScript:
		return true
	}
	return false
}

// leave implements [Call.Leave].
func (q *queue) leave(c *Call, late func(*Call)) (wasSent, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch c.state {
	case waiting:
		for i, p := range q.pending {
			if p == c {
				q.pending = append(q.pending[:i], q.pending[i+1:]...)
				break
			}
		}
		c.state = resolved
		return false, false
	case sent:
		c.late, c.ready = late, nil
		return true, false
	default:
		return true, true
	}
}

// lane sends batches until nothing is pending. It ends then, so that an idle node has no goroutine.
func (q *queue) lane(batch []*Call) {
	for ; batch != nil; batch = q.take() {
		q.exchange(batch)
	}
}

// outcome keeps the node at rest for a while if it could not be connected to. Dialling a server that is down for every
// command costs more than talking to one that is up, and a Redlock pays it for each node that is down. A rest doubles
// from minRest to maxRest, until something is sent again.
func (q *queue) outcome(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !unreachable(err) || q.ctx.Err() != nil {
		q.rest, q.restUntil = 0, time.Time{}
		return
	}
	q.rest = min(max(2*q.rest, minRest), maxRest)
	q.restUntil, q.restFor = time.Now().Add(q.rest), err
}

// unreachable reports whether err says that the node could not be connected to. [drivers.ErrNotSent] is not enough: a
// client whose pool is exhausted, or whose context had ended, has sent nothing either, and the node is in order.
func unreachable(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial" && isNotSent(err)
}

func (q *queue) take() []*Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.pending), maxBatch)
	if n == 0 {
		q.lanes--
		if q.lanes == 0 && q.idle != nil {
			close(q.idle)
			q.idle = nil
		}
		return nil
	}
	batch := make([]*Call, n)
	copy(batch, q.pending)
	rest := copy(q.pending, q.pending[n:])
	clear(q.pending[rest:])
	q.pending = q.pending[:rest]
	for _, c := range batch {
		c.state = sent
	}
	return batch
}

// exchange sends a batch and resolves its calls. What the server refuses with NOSCRIPT, and so has not executed, is sent
// again in full.
func (q *queue) exchange(batch []*Call) {
	ctx, cancel := context.WithTimeout(q.ctx, q.timeout)
	defer cancel()
	cmds := make([]drivers.Command, len(batch))
	for i, c := range batch {
		cmds[i] = c.cmd
	}
	var again []*Call
	for i, r := range q.do(ctx, cmds) {
		if e, ok := r.reply.(drivers.ServerError); ok && e.Code() == "NOSCRIPT" {
			again = append(again, batch[i])
			continue
		}
		q.resolve(batch[i], r)
	}
	if again == nil {
		return
	}
	cmds = cmds[:0]
	for _, c := range again {
		cmds = append(cmds, c.script.full(c.cmd))
	}
	for i, r := range q.do(ctx, cmds) {
		q.resolve(again[i], r)
	}
}

type result struct {
	reply drivers.Reply
	err   error
}

// do returns one result per command, whatever the driver returns.
func (q *queue) do(ctx context.Context, cmds []drivers.Command) []result {
	results := make([]result, len(cmds))
	replies, err := q.driver.Do(ctx, cmds...)
	q.outcome(err)
	if err == nil && len(replies) != len(cmds) {
		err = fmt.Errorf("the driver returned %d replies to %d commands", len(replies), len(cmds))
	}
	for i := range results {
		if err != nil {
			results[i].err = err
		} else {
			results[i].reply = replies[i]
		}
	}
	return results
}

func (q *queue) resolve(c *Call, r result) {
	q.mu.Lock()
	c.reply, c.err = r.reply, r.err
	c.state = resolved
	ready, late := c.ready, c.late
	q.mu.Unlock()
	if ready != nil {
		ready <- c // has room
	}
	if late != nil {
		late(c)
	}
}

var errClosedUnsent = drivers.NotSent(locker.ErrClosed)

// drain waits until no lane runs, and so nothing is under way and every late function has returned. It reports false if
// ctx ended before.
func (q *queue) drain(ctx context.Context) bool {
	q.mu.Lock()
	if q.lanes == 0 {
		q.mu.Unlock()
		return true
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	return await(ctx, idle)
}

// close refuses further commands and drops those that wait. Those in flight go on; see drain and cancel.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	dropped := q.pending
	q.pending = nil
	q.mu.Unlock()
	for _, c := range dropped {
		q.resolve(c, result{err: errClosedUnsent})
	}
}
