package record

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// Queue implements [backend.Queuer]. There is no queue in the store: the call looks at intervals, see [Poll]. A Client
// would look more often.
func (b *Backend) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	first := req.Token
	wait.EndWith(b.closing)
	for looks := 0; ; looks++ {
		sent := time.Now()
		req.Fences = wait.Fences()
		g, left, err := b.acquire(ctx, req, wait.Limit(req.TTL))
		var pause time.Duration
		var held *locker.HeldError
		switch {
		case err == nil:
			g.Sent = sent
			if req.Token != first {
				g.Token = req.Token
			}
			return g, nil
		case b.usable() != nil:
			return backend.Grant{}, locker.ErrClosed
		case errors.As(err, &held):
			wait.Held(held)
			pause = b.pauseAfter(looks, left)
		case errors.Is(err, locker.ErrUnavailable):
			if pause, err = wait.Failed(ctx, sent, err); err != nil {
				return backend.Grant{}, err
			}
			req.Token = backend.NewToken() // the attempt may be undone later
		default:
			return backend.Grant{}, err
		}
		if _, err := wait.Sleep(ctx, pause, nil); err != nil {
			return backend.Grant{}, err
		}
	}
}

// pauseAfter returns how long to wait after the lock was found held for the n-th time, from 0. It counts as free after
// left, if it is not renewed.
func (b *Backend) pauseAfter(n int, left time.Duration) time.Duration {
	d := min(b.poll, max(time.Millisecond, b.poll/16)<<min(n, 4))
	return min(d/2+rand.N(d/2+1), left)
}
