package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
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

	// laneIdle is how long a lane stays when there is nothing to send, for the next command: to start a goroutine, whose
	// stack has to grow on its way through the client, costs more than the rest of what this package does.
	laneIdle = time.Second

	minRest = 10 * time.Millisecond
	maxRest = 100 * time.Millisecond
)

// queue sends the commands of all callers of a node. A command that finds a lane free goes out at once; those that
// arrive while all are busy are sent together by the first that becomes free.
//
// A caller whose context can end does not wait inside the driver, because clients may ignore the end of a context. It
// waits for the call to come through its channel, and may leave before. A command that was not sent by then vanishes. Of
// one that was sent, the Latecomer given to leave is told when the reply comes.
type queue struct {
	driver  drivers.Driver
	direct  drivers.Direct // driver, if it is one; else nil
	timeout time.Duration  // of one exchange

	mu      sync.Mutex
	pending []*Call
	lanes   int
	idlers  []*lane // that have nothing to do
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
	q.direct, _ = d.(drivers.Direct)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// submit queues a command. It is resolved by a lane, within the exchange's timeout of being sent.
func (q *queue) submit(c *Call) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	free, err := q.admit(c)
	switch {
	case err != nil:
		return err
	case free:
		q.start(c)
	default:
		q.pending = append(q.pending, c)
	}
	return nil
}

// admit refuses c, or takes a free lane for it, if there is one. Call with mu held.
func (q *queue) admit(c *Call) (free bool, err error) {
	switch {
	case q.closed:
		return false, locker.ErrClosed
	case len(q.pending) >= maxPending:
		return false, errFull
	case !q.restUntil.IsZero() && !c.frees() && time.Now().Before(q.restUntil):
		return false, q.restFor
	case q.lanes == maxLanes:
		return false, nil
	}
	q.lanes++
	c.state = sent // as good as: the lane does nothing else first
	return true, nil
}

// inline sends c from the goroutine of its caller, who waits for the answer inside the driver, for limit at most. The
// driver must be punctual and the caller must have no other reason to leave. It reports false if no lane is free. What has
// gathered meanwhile is sent by another goroutine.
func (q *queue) inline(c *Call, limit time.Duration) (bool, error) {
	q.mu.Lock()
	free, err := q.admit(c)
	q.mu.Unlock()
	if !free {
		return false, err
	}
	r := q.alone(c, limit)
	c.reply, c.err, c.state = r.reply, r.err, resolved
	if batch := q.take(nil); batch != nil {
		go q.batches(batch)
	}
	return true, nil
}

// punctual reports whether the driver keeps to a deadline unasked, now.
func (q *queue) punctual() bool { return q.direct != nil && q.direct.Direct() }

// deadline is the context of an exchange with a driver that keeps to it unasked: it ends by time alone, and tells nobody.
// Nor does cancel end it, but drain, which Close calls before, waits for as long. See drivers.Direct.
type deadline struct {
	context.Context // the queue's, for Value
	end             time.Time
}

func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }
func (d *deadline) Done() <-chan struct{}       { return nil }

func (d *deadline) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
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
func (q *queue) leave(c *Call, late Latecomer) (wasSent, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch c.state {
	case waiting:
		q.remove(c)
		return false, false
	case sent:
		c.late, c.ready = late, nil
		return true, false
	default:
		return true, true
	}
}

// remove takes c, which waits, back. Call with mu held.
func (q *queue) remove(c *Call) {
	if i := slices.Index(q.pending, c); i >= 0 {
		q.pending = slices.Delete(q.pending, i, i+1)
	}
	c.state, c.ready, c.late = resolved, nil, nil // close may have it in its hands
}

// withdraw implements [Call.Withdraw].
func (q *queue) withdraw(c *Call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.state != waiting {
		return false
	}
	q.remove(c)
	return true
}

// underWay implements [Call.UnderWay].
func (q *queue) underWay(c *Call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return c.state == sent
}

// follow implements [Call.Follow].
func (q *queue) follow(c *Call, late Latecomer) (done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.state == resolved {
		return true
	}
	c.late, c.ready = late, nil
	return false
}

// lane is a goroutine that sends what callers do not send themselves. It ends when there has been nothing to send for a
// while, so that an idle node has none.
type lane struct {
	next chan *Call // has room for one; closed by close
}

// start has a lane send c, and then what is pending. Call with mu held.
func (q *queue) start(c *Call) {
	last := len(q.idlers) - 1
	if last < 0 {
		go q.lane(c)
		return
	}
	l := q.idlers[last] // it has not been idle for long
	q.idlers = q.idlers[:last]
	l.next <- c
}

func (q *queue) lane(c *Call) {
	l := &lane{next: make(chan *Call, 1)}
	patience := time.NewTimer(laneIdle)
	defer patience.Stop()
	for c != nil {
		q.resolve(c, q.alone(c, q.timeout))
		for batch := q.take(l); batch != nil; batch = q.take(l) {
			q.exchange(batch)
		}
		patience.Reset(laneIdle)
		select {
		case c = <-l.next:
		case <-patience.C:
			c = q.dismiss(l)
		}
	}
}

// dismiss ends l, unless a call has been given to it just now, which it returns.
func (q *queue) dismiss(l *lane) *Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.idlers, l); i >= 0 {
		q.idlers = slices.Delete(q.idlers, i, i+1)
		return nil
	}
	return <-l.next
}

// batches sends what has gathered.
func (q *queue) batches(batch []*Call) {
	for ; batch != nil; batch = q.take(nil) {
		q.exchange(batch)
	}
}

// alone sends one command, within limit.
func (q *queue) alone(c *Call, limit time.Duration) result {
	c.end = deadline{q.ctx, time.Now().Add(limit)}
	var ctx context.Context = &c.end
	if !q.punctual() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(q.ctx, c.end.end)
		defer cancel()
	}
	return q.single(ctx, c)
}

// single sends one command, and again in full if the server does not know the script.
func (q *queue) single(ctx context.Context, c *Call) result {
	c.batch[0] = c.cmd
	r := q.one(ctx, c.batch[:])
	if c.needsSource(r) {
		c.batch[0] = c.script.full(c.cmd)
		r = q.one(ctx, c.batch[:])
	}
	return r
}

// needsSource reports whether the server refused c because it does not know its script. What answers so to a command that is no
// script, as something between here and the server may, is not asked again.
func (c *Call) needsSource(r result) bool {
	e, refused := r.reply.(drivers.ServerError)
	return refused && c.script != nil && e.Code() == "NOSCRIPT"
}

// outcome keeps the node at rest for a while if it could not be connected to. Dialling a server that is down for every
// command costs more than talking to one that is up, and a Redlock pays it for each node that is down. A rest doubles
// from minRest to maxRest, until something is sent again.
func (q *queue) outcome(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil || !unreachable(err) || q.ctx.Err() != nil {
		q.rest, q.restUntil = 0, time.Time{}
		return
	}
	q.rest = min(max(2*q.rest, minRest), maxRest)
	q.restUntil, q.restFor = time.Now().Add(q.rest), err
}

// unreachable reports whether err says that the node could not be connected to. [drivers.ErrNotSent] is not enough: a
// client whose pool is exhausted, or whose context had ended, has sent nothing either, and the node is in order.
func unreachable(err error) bool {
	var op *net.OpError
	ok := errors.As(err, &op)
	return ok && op.Op == "dial" && isNotSent(err)
}

// take returns what a lane is to send next. If that is nothing it is a lane no more; l, if not nil, is then idle.
func (q *queue) take(l *lane) []*Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.pending), maxBatch)
	if n == 0 {
		q.lanes--
		switch {
		case l == nil:
		case q.closed:
			close(l.next)
		default:
			q.idlers = append(q.idlers, l)
		}
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
	if len(batch) == 1 {
		q.resolve(batch[0], q.alone(batch[0], q.timeout))
		return
	}
	ctx, cancel := context.WithTimeout(q.ctx, q.timeout)
	defer cancel()
	cmds := make([]drivers.Command, len(batch))
	for i, c := range batch {
		cmds[i] = c.cmd
	}
	var again []*Call
	for i, r := range q.do(ctx, cmds) {
		if batch[i].needsSource(r) {
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
	replies, err := q.send(ctx, cmds)
	for i := range results {
		if err != nil {
			results[i].err = err
		} else {
			results[i].reply = replies[i]
		}
	}
	return results
}

// one is do for one command.
func (q *queue) one(ctx context.Context, cmd []drivers.Command) result {
	replies, err := q.send(ctx, cmd)
	if err != nil {
		return result{err: err}
	}
	return result{reply: replies[0]}
}

func (q *queue) send(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
	if q.ctx.Err() != nil { // a lane that comes to run when the driver is being closed, or has been
		return nil, errClosedUnsent
	}
	replies, err := q.driver.Do(ctx, cmds...)
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) { // a dial that its caller broke off says nothing of the node
		q.outcome(err)
	}
	if err == nil && len(replies) != len(cmds) {
		err = fmt.Errorf("the driver returned %d replies to %d commands", len(replies), len(cmds))
	}
	return replies, err
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
		late.Late(c)
	}
}

var errClosedUnsent = drivers.NotSent(locker.ErrClosed)

// drain waits until no lane runs, and so nothing is under way and every Latecomer has been told. It reports false if
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
	dropped, idlers := q.pending, q.idlers
	q.pending, q.idlers = nil, nil
	q.mu.Unlock()
	for _, l := range idlers {
		close(l.next)
	}
	for _, c := range dropped {
		q.resolve(c, result{err: errClosedUnsent})
	}
}
