package locker

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker/backend"
)

const (
	// minPoll is the shortest pause between two polls, whatever the store says about the holder's remaining time.
	minPoll = 5 * time.Millisecond

	// maxPoll is the longest pause between two polls if the store does not notify waiters.
	maxPoll = 100 * time.Millisecond

	// toldPoll is the pause if the store notifies waiters. Polling is still necessary, because messages can be lost.
	toldPoll = 2 * time.Second
)

// news receives the notifications about one key. live and stop are those of [backend.Notifier].
type news struct {
	ring chan bool // has a value, false, if the lock may have become free
	live func() bool
	stop func()
}

// listen starts to receive notifications about key if the backend is a [backend.Notifier].
func (c *Client) listen(key string) *news {
	n := &news{ring: make(chan bool, 1), live: func() bool { return false }, stop: func() {}}
	if notifier, ok := c.backend.(backend.Notifier); ok {
		n.live, n.stop = notifier.Notify(key, func() {
			select {
			case n.ring <- false:
			default: // the waiter has not read the last notification yet
			}
		})
	}
	return n
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

// restOf returns for how long the node that returned err rests, or 0 if it does not.
func restOf(err error) time.Duration {
	var resting *GracePeriodError
	if errors.As(err, &resting) {
		return resting.Remaining
	}
	return 0
}
