package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/node"
)

// Guard makes a node that may have forgotten locks rest: it grants no lock until all locks that it may have forgotten
// have ended. That is so after a restart, FLUSHALL and a failover, whatever the node has kept. So a node that restarts
// empty cannot let a second holder in. A node that rests goes on to extend and to release. It does not count for a
// majority when a lock is acquired. Errors say how long it rests; see locker.RestingError.
//
// maxTTL is the longest TTL and MinHold of any lock with this prefix, and at least [locker.MinTTL]. Calls with a longer
// one fail before they send anything. A node rests for maxTTL, 2 % of it and 2 s. All clients must have the same guard:
// a node whose clients have another one answers with an error that matches locker.ErrInvalid, and clients without a
// guard are not kept from anything. Zero, the default, means no guard.
//
// New nodes rest, too. New begins that in the background, so that it is over sooner. [Bootstrap] skips it. The user
// needs the right to INFO on the nodes. docs/safety.md says what the guard relies on.
func Guard(maxTTL time.Duration) Option { return func(o *options) { o.guard = maxTTL } }

// Bootstrap ends the rest of the nodes behind ds: they grant locks at once, and rest when they may have forgotten locks
// again. The caller says that no node has forgotten a lock that may still be held, because the nodes are new, for
// example. The options are those of [New], with a [Guard]. Bootstrap waits until ctx ends or all nodes have answered.
// The error says which nodes have failed; the others are done. Bootstrap does not close ds.
func Bootstrap(ctx context.Context, ds []drivers.Driver, opts ...Option) error {
	open := make([]drivers.Driver, len(ds))
	for i, d := range ds {
		open[i] = node.Lend(d)
	}
	b, err := newBackend(open, opts)
	if err != nil {
		return fmt.Errorf("redlock: %w", err)
	}
	errs := make([]error, len(ds)+1)
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		wg.Go(func() { errs[i] = n.Bootstrap(ctx) })
	}
	wg.Wait()
	errs[len(ds)] = node.CloseWithin(ctx, b)
	return errors.Join(errs...)
}

// rest returns after how long enough nodes grant locks, if too many of them rest now. It returns 0 if that is not
// known.
func (e *QuorumError) rest() time.Duration {
	var rests []time.Duration
	missing := e.Need
	for _, v := range e.Votes {
		var resting *locker.RestingError
		switch {
		case errors.As(v.Err, &resting):
			rests = append(rests, resting.Remaining)
		case v.Outcome == Agreed, v.Outcome == Held, v.Outcome == NotAsked:
			missing--
		}
	}
	if missing < 1 || missing > len(rests) {
		return 0
	}
	slices.Sort(rests)
	return rests[missing-1]
}
