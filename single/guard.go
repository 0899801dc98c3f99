package single

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
)

// Guard makes a server that may have forgotten locks rest: it grants no lock until all locks that it may have forgotten
// have ended. That is so after a restart, FLUSHALL and a failover, whatever the server has kept. Acquisitions then fail
// with a locker.GracePeriodError, which says for how long. A server that rests goes on to extend and to release.
//
// maxTTL is the longest TTL and MinHold of any lock with this prefix, and at least [locker.MinTTL]. Calls with a longer
// one fail before they send anything. The server rests for maxTTL, 2 % of it and 2 s. All clients must have the same
// guard: clients with another one get an error that matches locker.ErrInvalid, and clients without a guard are not kept
// from anything. Zero, the default, means no guard.
//
// A new server rests, too. New begins that in the background, so that it is over sooner. [Bootstrap] skips it. Behind a
// Redis Cluster, the locks of each hash slot rest by themselves, from the first acquisition on. The user needs the
// right to INFO. docs/safety.md says what the guard relies on.
func Guard(maxTTL time.Duration) Option { return func(o *options) { o.Guard = maxTTL } }

// Bootstrap ends the rest of the server behind d: it grants locks at once, and rests when it may have forgotten locks
// again. The caller says that the server has forgotten no lock that may still be held, because it is new, for example.
// The options are those of [New], with a [Guard]. Behind a Redis Cluster, Bootstrap writes 16,384 small keys, one for
// each slot. If d does not know that its server is part of a cluster, it writes one of them, and the locks of other
// slots rest. Bootstrap returns when ctx ends, if not before, and does not close d.
func Bootstrap(ctx context.Context, d drivers.Driver, opts ...Option) error {
	o := newOptions(opts)
	if err := o.misuse(d); err != nil {
		return err
	}
	if d, ok := node.Lend(d).(drivers.Cluster); ok {
		c := node.NewCluster(d, o.Options)
		return errors.Join(c.Bootstrap(ctx), node.CloseWithin(ctx, c))
	}
	n := node.New(node.Lend(d), o.Options)
	return errors.Join(n.Bootstrap(ctx), node.CloseWithin(ctx, n))
}
