package locker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// minPoll keeps a waiter from spinning, whatever the store says about the holder's remaining time.
	minPoll = 5 * time.Millisecond
	// maxPoll bounds how long a free lock goes unnoticed where the store does not tell. A poll costs it one small script.
	maxPoll = 100 * time.Millisecond
	// toldPoll is the same where the store does tell, but messages can be lost.
	toldPoll = 2 * time.Second
	// silence is how long an attempt may go unanswered before it counts as one that failed.
	silence = time.Second
)

// lock acquires key, waiting while it is held: for its turn among the callers of this Client, then at the store.
func (c *Client) lock(ctx context.Context, key string, o options) (l *lease, err error) {
	if err := ended(ctx); err != nil {
		return nil, withContext(ctx, err)
	}
	start := time.Now()
	trace := TraceFrom(ctx)
	var since time.Time
	turn, err := c.gate.enter(ctx, c.closing, key, func() {
		since = time.Now()
		trace.waiting(0)
	})
	if err != nil {
		return nil, waited(ctx, start, err)
	}
	if turn.announced = !since.IsZero(); turn.announced {
		trace.woken(WakeTurn, since)
	}
	defer func() { turn.leave(err == nil) }()
	l, err = c.wait(ctx, key, o, turn)
	if err != nil {
		return nil, waited(ctx, start, err)
	}
	return l, nil
}

// wait acquires key for the one whose turn it is. Where the store has a queue, that waits. Otherwise, it tries again and
// again while the lock is held: when the store says that it may be free, when its holder's time is over, and now and then.
// Once the lock was seen held, a store that fails is borne for a while.
func (c *Client) wait(ctx context.Context, key string, o options, turn *line) (*lease, error) {
	news := &news{live: func() bool { return false }, stop: func() {}}
	defer func() { news.stop() }()
	for n := 0; ; n++ {
		asked := time.Now()
		l, err := c.attempt(ctx, key, o, turn)
		if err == nil {
			return l, nil
		}
		over := ended(ctx)
		var pause time.Duration
		switch {
		case over != nil && (errors.Is(err, over) || isFault(err) && time.Since(asked) < silence):
			// An attempt that was not made, or that was in flight for a moment only, says nothing: what was seen before does.
			if last, _, _ := turn.seen(); last != nil {
				err = last
			}
			return nil, err
		case errors.Is(err, ErrHeld):
			turn.saw(err, TraceFrom(ctx))
			if over != nil || c.queuer != nil {
				return nil, err
			}
			remaining := remainingOf(err)
			if news.ring == nil {
				news = c.listen(key)
			}
			pause = pollDelay(n, remaining, news.live())
		case isFault(err):
			turn.failing(asked, err)
			_, held, since := turn.seen()
			if over != nil || !held || since >= o.patience {
				return nil, err
			}
			pause = faultDelay(since)
		default:
			return nil, err
		}
		c.sleep(ctx, news, pause)
	}
}

// isFault reports whether err may pass: the store was not reached, did not answer, or refused.
func isFault(err error) bool {
	return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrForeignKey) && !errors.Is(err, ErrInvalid)
}

// news is what a [Notifier] has to say of one key.
type news struct {
	ring chan struct{}
	live func() bool
	stop func()
}

// listen begins to hear of key, if the backend can tell.
func (c *Client) listen(key string) *news {
	n := &news{ring: make(chan struct{}, 1), live: func() bool { return false }, stop: func() {}}
	if notifier, ok := c.backend.(Notifier); ok {
		n.live, n.stop = notifier.Notify(key, func() {
			select {
			case n.ring <- struct{}{}:
			default: // it has been rung, and nobody has come to look yet
			}
		})
	}
	return n
}

// sleep returns after d, when there is news, or when there is no point in waiting on: the next attempt says why.
func (c *Client) sleep(ctx context.Context, news *news, d time.Duration) {
	start := time.Now()
	reason := WakePoll
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-news.ring:
		reason = WakeHint
	case <-c.closing:
		return
	case <-ctx.Done():
		return
	}
	TraceFrom(ctx).woken(reason, start)
}

// pollDelay is the pause after the n-th held answer: doubling from minPoll to maxPoll, or toldPoll at once where news
// comes, with up to half of it random, so that waiters spread; sooner if the lock is known to be free earlier.
func pollDelay(n int, remaining time.Duration, told bool) time.Duration {
	d := maxPoll
	if told {
		d = toldPoll
	} else if n < 10 {
		d = min(maxPoll, minPoll<<n)
	}
	d = d/2 + rand.N(d/2)
	if remaining > 0 {
		d = min(d, remaining)
	}
	return max(d, minPoll)
}

// faultDelay is the pause after an attempt that failed, when attempts have been failing for so long: at once a short one, for
// a server that restarts, and longer and longer ones later.
func faultDelay(since time.Duration) time.Duration {
	d := min(max(since, maxPoll), time.Second)
	return d/2 + rand.N(d/2)
}

// remainingOf returns the holder's remaining time, if err has it.
func remainingOf(err error) time.Duration {
	var held *HeldError
	if errors.As(err, &held) {
		return held.Remaining
	}
	return 0
}
