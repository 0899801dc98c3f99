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
)

// lock acquires key, waiting while it is held: for its turn among the callers of this Client, then at the store.
func (c *Client) lock(ctx context.Context, key string, o options) (l *lease, err error) {
	if err := ended(ctx); err != nil {
		return nil, withContext(ctx, err)
	}
	trace := TraceFrom(ctx)
	var since time.Time
	turn, err := c.gate.enter(ctx, c.closing, key, func() {
		since = time.Now()
		trace.waiting(0)
	})
	if err != nil {
		return nil, withContext(ctx, err)
	}
	if turn.announced = !since.IsZero(); turn.announced {
		trace.woken(WakeTurn, since)
	}
	defer func() { turn.leave(err == nil) }()
	if c.queuer == nil {
		return c.poll(ctx, key, o, turn)
	}
	l, err = c.attempt(ctx, key, o, turn)
	if err != nil {
		return nil, withContext(ctx, err)
	}
	return l, nil
}

// poll acquires key by trying again and again while it is held: when the store says that it may be free, when its holder's
// time is over, and now and then. It reports ctx's end together with the last answer: an attempt that was in flight when
// ctx ended has said nothing, so it does not hide that the lock was seen held before.
func (c *Client) poll(ctx context.Context, key string, o options, turn *line) (*lease, error) {
	var seen error
	var news *news
	for n := 0; ; n++ {
		l, err := c.attempt(ctx, key, o, nil)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, ErrHeld) {
			if seen != nil && ended(ctx) != nil && (errors.Is(err, ErrUnavailable) || errors.Is(err, ended(ctx))) {
				err = seen
			}
			return nil, withContext(ctx, err)
		}
		seen = err
		turn.saw(err, TraceFrom(ctx))
		remaining := remainingOf(err)
		if n == 0 {
			news = c.listen(key)
			defer news.stop()
		}
		c.sleep(ctx, news, pollDelay(n, remaining, news.live()))
	}
}

// news is what a [Notifier] has to say of one key.
type news struct {
	ring chan struct{}
	live func() bool
	stop func()
}

// listen begins to hear of key, if the backend can tell.
func (c *Client) listen(key string) *news {
	n := &news{live: func() bool { return false }, stop: func() {}}
	if notifier, ok := c.backend.(Notifier); ok {
		n.ring = make(chan struct{}, 1)
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

// remainingOf returns the holder's remaining time, if err has it.
func remainingOf(err error) time.Duration {
	if held, ok := errors.AsType[*HeldError](err); ok {
		return held.Remaining
	}
	return 0
}
