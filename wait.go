package locker

import (
	"context"
	"errors"
	"github.com/golocker/locker/lockertrace"
	"math/rand/v2"
	"time"
)

const (
	// minPoll is the shortest pause between two polls, whatever the store says about the holder's remaining time.
	minPoll = 5 * time.Millisecond

	// maxPoll is the longest pause between two polls if the store does not notify waiters.
	maxPoll = 100 * time.Millisecond

	// toldPoll is the pause if the store notifies waiters. Polling is still necessary, because messages can be lost.
	toldPoll = 2 * time.Second

	// silence is how long an attempt may be unanswered before it counts as failed.
	silence = time.Second
)

// wait acquires key for the caller at the front of its queue. If the backend is a Queuer, the attempt itself waits.
// Otherwise wait makes attempts until one succeeds: when the store reports that the lock may be free, when the holder's
// TTL ends, and at intervals. Once the lock was seen held, wait tolerates a failing store for o.patience.
func (c *Client) wait(ctx context.Context, key string, o options, turn *keyQueue) (*lease, error) {
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
			// The attempt was not sent, or had no time to be answered. The error is what was seen before it.
			if _, _, last := turn.seen(); last != nil {
				err = last
			}
			return nil, err
		case errors.Is(err, ErrHeld):
			turn.saw(err)
			if over != nil || c.queuer != nil {
				return nil, err
			}
			remaining := heldOf(err).Remaining
			if news.ring == nil {
				news = c.listen(key)
			}
			pause = pollDelay(n, remaining, news.live())
		case isFault(err):
			turn.failing(asked, err)
			held, since, _ := turn.seen()
			if over != nil || !held || since >= o.patience {
				return nil, err
			}
			if pause = faultDelay(since); restOf(err) > 0 {
				pause += min(restOf(err), o.patience-since)
			}
		default:
			return nil, err
		}
		c.sleep(ctx, news, pause)
	}
}

// isFault reports whether err is a failure of the store that may be temporary.
func isFault(err error) bool {
	return errors.Is(err, ErrUnavailable) &&
		!errors.Is(err, ErrClosed) && !errors.Is(err, ErrForeignKey) && !errors.Is(err, ErrInvalid)
}

// news receives the notifications about one key. live and stop are those of [Notifier].
type news struct {
	ring chan struct{} // has a value if the lock may have become free
	live func() bool
	stop func()
}

// listen starts to receive notifications about key if the backend is a [Notifier].
func (c *Client) listen(key string) *news {
	n := &news{ring: make(chan struct{}, 1), live: func() bool { return false }, stop: func() {}}
	if notifier, ok := c.backend.(Notifier); ok {
		n.live, n.stop = notifier.Notify(key, func() {
			select {
			case n.ring <- struct{}{}:
			default: // the waiter has not read the last notification yet
			}
		})
	}
	return n
}

// sleep waits for d, for a notification, for the end of ctx, or until the Client is closed, whichever comes first. In
// the last two cases the next attempt fails.
func (c *Client) sleep(ctx context.Context, news *news, d time.Duration) {
	start := time.Now()
	reason := lockertrace.WakePoll
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-news.ring:
		reason = lockertrace.WakeHint
	case <-c.closing:
		return
	case <-ctx.Done():
		return
	}
	woken(lockertrace.From(ctx), reason, start)
}

// pollDelay returns the pause after the n-th answer that the lock is held. The pause doubles from minPoll to maxPoll,
// or is toldPoll if the store notifies waiters. It is shortened by a random part of up to a half, so that waiters do
// not poll at the same time. It is not longer than remaining, if that is known.
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

// faultDelay returns the pause after a failed attempt. since is how long attempts have been failing. The first pauses
// are short, because servers restart, and later ones are longer.
func faultDelay(since time.Duration) time.Duration {
	d := min(max(since, maxPoll), time.Second)
	return d/2 + rand.N(d/2)
}

// restOf returns for how long the node that returned err rests, or 0 if it does not.
func restOf(err error) time.Duration {
	var resting *RestingError
	if errors.As(err, &resting) {
		return resting.Remaining
	}
	return 0
}

// heldOf returns what err says about the holder, or the zero HeldError if it says nothing.
func heldOf(err error) HeldError {
	if err == nil { // errors.As would allocate
		return HeldError{}
	}
	var held *HeldError
	if errors.As(err, &held) {
		return *held
	}
	return HeldError{}
}
