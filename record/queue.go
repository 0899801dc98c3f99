package record

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
)

// Queue implements [locker.Queuer]. There is no queue in the store: the call looks at intervals, see [Poll]. A Client
// would look more often.
func (b *Backend) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	first := req.Token
	req.Wait.EndWith(b.closing)
	for looks := 0; ; looks++ {
		sent := time.Now()
		g, left, err := b.acquire(ctx, req, b.limit(req))
		var wait time.Duration
		var held *locker.HeldError
		switch {
		case err == nil:
			g.Sent = sent
			if req.Token != first {
				g.Token = req.Token
			}
			return g, nil
		case b.usable() != nil:
			return locker.Grant{}, locker.ErrClosed
		case errors.As(err, &held):
			req.Wait.Held(held)
			wait = b.pauseAfter(looks, left)
		case errors.Is(err, locker.ErrUnavailable):
			if err := req.Wait.Failed(ctx, sent, err); err != nil {
				return locker.Grant{}, err
			}
			wait = req.Wait.Pause()
			req.Token = locker.NewToken() // the attempt may be undone later
		default:
			return locker.Grant{}, err
		}
		if _, err := req.Wait.Sleep(ctx, wait, nil); err != nil {
			return locker.Grant{}, err
		}
	}
}

// limit bounds an attempt of a call that waits by what is left of its patience.
func (b *Backend) limit(req locker.Request) time.Duration {
	left := req.Wait.Left()
	if since, _ := req.Wait.Failing(); req.Wait.Waits() && (left > 0 || !since.IsZero()) {
		return min(req.TTL, max(time.Millisecond, left))
	}
	return req.TTL
}

// pauseAfter returns how long to wait after the lock was found held for the n-th time, from 0. It counts as free after
// left, if it is not renewed.
func (b *Backend) pauseAfter(n int, left time.Duration) time.Duration {
	d := min(b.poll, max(time.Millisecond, b.poll/16)<<min(n, 4))
	return min(d/2+rand.N(d/2+1), left)
}
