package locker

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker/internal/ending"
	"github.com/golocker/locker/lockertrace"
)

// Lock implements [Locker].
func (c *Client) Lock(ctx context.Context, key string, opts ...Option) (_ Lease, err error) {
	defer func() {
		if err != nil {
			err = &Error{"lock", key, err}
		}
	}()
	o := newOptions(opts)
	if err := o.validate(key); err != nil {
		return nil, err
	}
	if err := ending.Of(ctx); err != nil {
		return nil, withContext(ctx, err)
	}
	start := time.Now()
	queue, err := c.queues.enter(ctx, c.closing, key)
	if err != nil {
		return nil, waited(ctx, start, c.heldByItself(key, o, err))
	}
	var l *lease // nil also if a hook panics
	defer func() { queue.leave(l != nil, o.label) }()
	if l, err = c.wait(ctx, key, o, queue); err != nil {
		since, _ := queue.Failing()
		takenFrom(ctx).failing(since)
		return nil, waited(ctx, start, c.heldByItself(key, o, err))
	}
	return l, nil
}

// TryLock implements [Locker].
func (c *Client) TryLock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	o := newOptions(opts)
	err := o.validate(key)
	if err == nil {
		var l *lease
		if l, err = c.attempt(ctx, key, o, nil); err == nil {
			return l, nil
		}
		err = withContext(ctx, c.heldByItself(key, o, err))
	}
	return nil, &Error{"trylock", key, err}
}

// attempt makes one attempt to acquire key. If queue is not nil and the backend is a Queuer, the attempt waits in the
// store's queue. The error says what was seen of the lock. It is ctx's error if ctx had ended before anything was sent.
func (c *Client) attempt(ctx context.Context, key string, o options, queue *keyQueue) (l *lease, err error) {
	if !c.enter(&c.attempts) {
		return nil, ErrClosed
	}
	defer c.attempts.Done()
	if err := ending.Of(ctx); err != nil {
		return nil, err
	}
	req := Request{Key: key, Token: NewToken(), TTL: o.ttl, Label: o.label, MinHold: o.minHold}
	trace := lockertrace.From(ctx)
	var grant Grant
	start := time.Now()
	if queue == nil || c.queuer == nil {
		grant, err = c.backend.Acquire(ctx, req)
	} else {
		req.Wait = &queue.Wait
		grant, err = c.queuer.Queue(ctx, req)
		req.Wait = nil
	}
	sent := start
	if err = fromBackend(err); err == nil {
		sent = grant.of(&req, start)
		defer func() {
			if l == nil { // also if a hook panics
				_ = c.giveUp(ctx, req, err)
			}
		}()
	}
	attempted(trace, start, err)
	if err != nil {
		return nil, err
	}
	if l, err = c.begin(trace, req, sent, o); err == nil {
		takenFrom(ctx).add(l)
	}
	return l, err
}

// of completes req, to which g was granted, for later requests. It returns when the request was sent that set the TTL;
// start is when the call began.
func (g *Grant) of(req *Request, start time.Time) (sent time.Time) {
	req.Fence, req.Private = g.Fence, g.Private
	if g.Token != "" {
		req.Token = g.Token
	}
	if g.Sent.IsZero() {
		return start
	}
	return g.Sent
}

// begin begins the lease of a lock that was granted to req, which was sent at start.
func (c *Client) begin(trace *lockertrace.Trace, req Request, start time.Time, o options) (*lease, error) {
	l, err := c.hold(trace, req, start, o)
	if err != nil {
		return nil, err
	}
	if n, ok := c.backend.(LossNotifier); ok {
		l.listen(n)
	}
	return l, nil
}

// wait acquires key for the caller at the front of its queue. If the backend is a Queuer, the attempt itself waits.
// Otherwise wait makes attempts until one succeeds: when the store reports that the lock may be free, when the holder's
// TTL ends, and at intervals. Once the lock was seen held, wait tolerates a failing store for o.patience.
func (c *Client) wait(ctx context.Context, key string, o options, queue *keyQueue) (*lease, error) {
	news := &news{live: func() bool { return false }, stop: func() {}}
	defer func() { news.stop() }()
	for n := 0; ; n++ {
		asked := time.Now()
		queue.begin(o.patience, c.closing)
		l, err := c.attempt(ctx, key, o, queue)
		if err == nil {
			return l, nil
		}
		over := ending.Of(ctx)
		var pause time.Duration
		switch {
		case over != nil && errors.Is(err, over): // the attempt was not sent
			return nil, queue.last(err)
		case errors.Is(err, ErrHeld):
			queue.found(err)
			takenFrom(ctx).failing(time.Time{})
			if over != nil || c.queuer != nil {
				return nil, err
			}
			if news.ring == nil {
				news = c.listen(key)
			}
			pause = pollDelay(n, heldOf(err).Remaining, news.live())
		case isFault(err):
			took := time.Since(asked)
			if queue.Waits() { // the store answered during this attempt, and the Queuer has recorded when it began to fail
				asked = time.Now()
				takenFrom(ctx).failing(time.Time{})
			}
			if end := queue.note(over != nil, took, asked, err); end != nil {
				return nil, end
			}
			held, since, _ := queue.seen()
			if held, since = takenFrom(ctx).seen(held, since); !held || since >= o.patience {
				return nil, err
			}
			pause = queue.pause(since)
		default:
			return nil, err
		}
		if _, err := queue.Sleep(ctx, pause, news.ring); err != nil {
			return nil, err
		}
	}
}

// isFault reports whether err is a failure of the store that may be temporary.
func isFault(err error) bool {
	return errors.Is(err, ErrUnavailable) &&
		!errors.Is(err, ErrClosed) && !errors.Is(err, ErrForeignKey) && !errors.Is(err, ErrInvalid)
}
