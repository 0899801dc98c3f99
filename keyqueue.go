package locker

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/several"
	"github.com/golocker/locker/lockertrace"
)

// keyQueues has a queue per key for the callers of one Client. Only the caller at the front of a queue asks the store,
// so a thousand waiting goroutines cost the store no more than one.
//
// The caller at the front leaves when it has acquired the lock, not when it has released it. The next caller is then
// already waiting at the store when the lock is released.
//
// If the store has granted several fencing tokens, nobody is at the front for a while. Callers get the lock from each
// other meanwhile, without the store ("lock cohorting": Dice, Marathe, Shavit, PPoPP 2012).
type keyQueues struct {
	mu    sync.Mutex
	byKey map[string]*keyQueue // the queues that have a caller at the front, or a grant that is handed over
	heeds map[string][]*lease  // the leases that are told when a caller comes; see lease.heed

	// groups has the callers that wait for something of a group, each by itself, by the key of the group.
	groups map[string][]*keyQueue
}

// maxLocal and localPart bound for how long callers of one Client may hand a lock over to each other after the store
// has granted it: it is the shorter of maxLocal and that part of the TTL. Callers of other Clients wait for that much
// longer.
const (
	maxLocal  = 50 * time.Millisecond
	localPart = 20
)

// keyQueue is the queue of the callers that want one key.
type keyQueue struct {
	queues  *keyQueues
	key     string
	wants   *backend.Group // what the only caller of this queue wants of a group; else nil
	waiting list.List      // of *caller

	// The following are guarded by the mutex of queues.
	local  *grant    // is handed over from caller to caller; nil if a caller is at the front
	fences int       // how many tokens of local are left
	alone  bool      // what the caller at the front acquires is not handed over
	front  terms     // of that caller
	since  time.Time // when its call began
	from   *stack    // see options.from

	granted time.Time // when the answer came that the caller at the front has the lock, which is local afterwards

	// wait is that of the caller at the front. The callers behind it report what it has learnt from the store when their
	// context ends, and the next caller at the front starts from that.
	wait
}

// caller is a caller that waits in a queue.
type caller struct {
	trace *lockertrace.Trace
	since time.Time // when the call began
	terms terms
	from  *stack        // see options.from
	local bool          // see options.local
	part  bool          // of a call for several locks, which owns the lease until it ends; see own
	ready chan struct{} // closed when the caller has come to the front, or has got a lease
	lease *lease        // from the caller before; nil if this one has come to the front
}

// terms is what callers must have asked for alike, so that one may have a lease of what the other has acquired.
type terms struct {
	ttl       time.Duration
	label     string
	noRenewal bool
}

func (o *options) terms() terms { return terms{o.ttl, o.label, o.noRenewal} }

// local reports whether a call with the context ctx may get the lock from another caller of its Client, and may hand it
// over.
func (o *options) local(ctx context.Context) bool {
	return !o.noLocal && o.minHold == 0 && o.maxHold == 0 && takenFrom(ctx) == nil
}

// fits reports whether the caller can have a lease of what a caller with these terms has acquired.
func (w *caller) fits(front terms) bool { return w.local && w.terms == front }

var errBehind = errors.New("other callers of this client are waiting for the lock ahead of this one")

// join waits until the caller is at the front of the queue of key. The caller must then call leave. If the caller
// before it hands the lock over, join returns a lease instead. join fails when ctx ends or closing is closed. If it has
// to wait, it calls the Trace of ctx, with the label of the holder that was seen last.
func (qs *keyQueues) join(
	ctx context.Context, closing <-chan struct{}, key string, o options, start time.Time,
) (*keyQueue, *lease, error) {
	trace := lockertrace.From(ctx)
	qs.mu.Lock()
	for _, l := range qs.heeds[key] {
		l.want()
	}
	delete(qs.heeds, key)
	q := qs.byKey[key]
	if q == nil {
		if qs.byKey == nil {
			qs.byKey = make(map[string]*keyQueue)
		}
		q = &keyQueue{queues: qs, key: key, since: start, from: o.from}
		q.trace, q.queue = trace, q
		qs.byKey[key] = q
		qs.mu.Unlock()
		return q, nil, nil
	}
	w := &caller{
		trace: trace, since: start, terms: o.terms(), from: o.from, local: o.local(ctx),
		part: several.CallFrom(ctx) != nil, ready: make(chan struct{}),
	}
	position := q.waiting.PushBack(w)
	q.settle()
	qs.mu.Unlock()
	panics := true
	defer func() {
		if !panics { // in a hook
			return
		}
		if l := q.quit(w, position); l != nil {
			defer l.discount()
			_ = l.unlock(ctx)
		}
	}()
	since := time.Now()
	waiting(trace, HeldError{Label: q.label()})
	err := q.await(ctx, closing, w, since, o.patience)
	if err != nil && q.quit(w, position) == nil {
		panics = false
		if failing, _ := q.failing(); !failing.IsZero() {
			several.CallFrom(ctx).Failing(failing)
		}
		return nil, nil, err
	}
	if w.lease != nil { // maybe at the moment at which ctx has ended
		woken(trace, lockertrace.WakeLocal, since)
		panics = false
		return q, w.lease, nil
	}
	q.trace, q.announced = trace, true
	woken(trace, lockertrace.WakeFront, since)
	panics = false
	return q, nil, nil
}

// await returns when the wait of w, which has come at joined, is over. The caller at the front asks the store for all
// of them, and each bears a store that fails for its own patience.
func (q *keyQueue) await(
	ctx context.Context, closing <-chan struct{}, w *caller, joined time.Time, patience time.Duration,
) error {
	doubts := q.doubts()
	var over <-chan time.Time // may be the end of the patience
	for {
		select {
		case <-w.ready:
			return nil
		case <-closing:
			return ErrClosed
		case <-ctx.Done():
			return q.last(errBehind)
		case <-over:
			over, doubts = nil, q.doubts()
		case <-doubts:
			left, fault := q.bears(patience, joined)
			switch {
			case fault == nil: // the store has answered again
				doubts = q.doubts()
			case left <= 0:
				return fault
			default:
				over, doubts = time.After(left), nil
			}
		}
	}
}

// heed tells l when a caller of its key comes, until ignore is called. If there is a caller already, heed tells l at
// once, and returns true.
func (qs *keyQueues) heed(l *lease) bool {
	key := l.Key()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if qs.wants(l) {
		l.want()
		return true
	}
	if qs.heeds == nil {
		qs.heeds = make(map[string][]*lease)
	}
	qs.heeds[key] = append(qs.heeds[key], l)
	return false
}

// wants reports whether a caller waits for the lock of l. Call with the mutex held.
func (qs *keyQueues) wants(l *lease) bool {
	q := qs.byKey[l.Key()]
	return q != nil && (q.local == nil || q.waiting.Len() > 0) || slices.ContainsFunc(qs.groups[l.Key()], l.isInWayOf)
}

// stand records that the caller of q waits for something of a group, and tells the leases that are in its way.
func (q *keyQueue) stand() {
	qs := q.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if qs.groups == nil {
		qs.groups = make(map[string][]*keyQueue)
	}
	qs.groups[q.key] = append(qs.groups[q.key], q)
	for _, l := range qs.heeds[q.key] {
		if l.isInWayOf(q) {
			l.want()
		}
	}
}

// walk ends what stand has begun, if it has.
func (q *keyQueue) walk() {
	qs := q.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	switch i := slices.Index(qs.groups[q.key], q); {
	case i < 0: // it has not waited
	case len(qs.groups[q.key]) == 1:
		delete(qs.groups, q.key)
	default:
		qs.groups[q.key] = slices.Delete(qs.groups[q.key], i, i+1)
	}
}

// ignore ends what heed has begun.
func (qs *keyQueues) ignore(l *lease) {
	key := l.Key()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	rest := slices.DeleteFunc(qs.heeds[key], func(other *lease) bool { return other == l })
	if qs.heeds[key] = rest; len(rest) == 0 {
		delete(qs.heeds, key)
	}
}

// quit removes a caller that waits. If it has got a lease at the same moment, it keeps that, and quit returns it.
func (q *keyQueue) quit(w *caller, position *list.Element) *lease {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	select {
	case <-w.ready:
		if w.lease == nil { // the caller came to the front, and passes this on
			q.next()
		}
		return w.lease
	default:
		q.waiting.Remove(position)
		q.settle()
		return nil
	}
}

// shares records whether the lock that the caller at the front acquires with o may be handed over. It reports whether a
// caller waits that it could be handed over to.
func (q *keyQueue) shares(o options, local bool) bool {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	q.alone, q.front = !local, o.terms()
	return q.wanted()
}

// waited reports whether a caller waits that the lock could be handed over to.
func (q *keyQueue) waited() bool {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	return q.wanted()
}

// wanted reports whether the next caller could have a lease of what the caller at the front acquires. Call with the
// mutex held.
func (q *keyQueue) wanted() bool {
	first := q.waiting.Front()
	return !q.alone && first != nil && first.Value.(*caller).fits(q.front)
}

// leave removes the caller at the front. l is the lease that it has acquired, if it has. If the grant of l can be
// handed over, nobody else comes to the front for now.
func (q *keyQueue) leave(l *lease) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if l == nil {
		q.next()
		return
	}
	g := l.grant
	if q.waiting.Len() > 0 || g.queue != nil { // somebody may come while the lock is handed over
		q.saw(&HeldError{Label: g.req.Label}) // by this client
	}
	rest := q.left(g)
	if q.alone || g.queue == nil || rest <= 0 || g.over() {
		q.next()
		return
	}
	q.local, q.fences = g, g.req.Fences-1
	time.AfterFunc(rest, func() {
		q.over(g)
		g.check()
	})
	q.settle()
}

// left returns for how long g may still be handed over.
func (q *keyQueue) left(g *grant) time.Duration {
	return left(q.granted.Add(min(maxLocal, g.req.TTL/localPart)))
}

// handOver gives the lock of l to the first caller that waits. It returns false if that is not possible. The lock then
// has to be released.
func (q *keyQueue) handOver(l *lease) bool {
	handed, asking := q.pass(l)
	for _, cancel := range asking { // which asks the context of its caller
		(*cancel)()
	}
	return handed
}

func (q *keyQueue) pass(l *lease) (handed bool, asking []*context.CancelFunc) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	first := q.waiting.Front()
	if q.local != l.grant || first == nil || q.left(q.local) <= 0 {
		return false, nil
	}
	w := first.Value.(*caller)
	if w.part && !l.grant.client.enter(&l.grant.client.attempts) { // Close would not wait for its release
		return false, nil
	}
	if w.lease, asking = l.grant.pass(l, w); w.lease == nil {
		if w.part {
			l.grant.client.attempts.done()
		}
		return false, nil
	}
	q.fences--
	q.waiting.Remove(first)
	close(w.ready)
	q.settle()
	return true, asking
}

// settle brings the next caller to the front if no caller can get a lease of local any more, or if the next one cannot.
// The caller at the front then waits at the store until local is released. Call with the mutex held.
func (q *keyQueue) settle() {
	if q.local == nil {
		return
	}
	first := q.waiting.Front()
	if q.fences == 0 || first != nil && !first.Value.(*caller).fits(q.front) {
		q.end()
	}
}

// over brings the next caller to the front if g is handed over in this queue. This is no longer possible.
func (q *keyQueue) over(g *grant) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.local == g {
		q.end()
	}
}

// end ends the hand-overs of local. Call with the mutex held.
func (q *keyQueue) end() {
	q.local = nil
	q.next()
}

// next brings the next caller to the front. It removes the queue if there is none. Call with the mutex held.
func (q *keyQueue) next() {
	first := q.waiting.Front()
	if first == nil {
		delete(q.queues.byKey, q.key)
		return
	}
	w := q.waiting.Remove(first).(*caller)
	q.since, q.from = w.since, w.from
	close(w.ready)
}
