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
	// maxPoll bounds how long a free lock goes unnoticed. A poll costs the store one small script.
	maxPoll = 100 * time.Millisecond
)

// wait acquires key, polling while it is held. It reports ctx's end together with the last answer: an attempt that
// was in flight when ctx ended has said nothing, so it does not hide that the lock was seen held before.
func (c *Client) wait(ctx context.Context, key string, o *options) (*lease, error) {
	var seen error
	for n := 0; ; n++ {
		l, err := c.attempt(ctx, key, o)
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
		c.pause(ctx, pollDelay(n, err))
	}
}

// pause sleeps for d, or until there is no point in waiting on: the next attempt says why.
func (c *Client) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.closing:
	case <-ctx.Done():
	}
}

// pollDelay is the pause after the n-th held answer: doubling from minPoll to maxPoll with up to half of it random, so
// that waiters spread; sooner if the lock is known to be free earlier.
func pollDelay(n int, err error) time.Duration {
	d := maxPoll
	if n < 10 {
		d = min(maxPoll, minPoll<<n)
	}
	d = d/2 + rand.N(d/2)
	var held *HeldError
	if errors.As(err, &held) && held.Remaining > 0 {
		d = min(d, held.Remaining)
	}
	return max(d, minPoll)
}
