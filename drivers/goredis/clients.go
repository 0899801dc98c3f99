package goredis

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker/drivers"
)

// New makes a driver of client, which stays the caller's: Close leaves it open. It takes a *redis.Client, those that follow a
// Sentinel's master among them, or a *redis.ClusterClient (every key of one script in one slot). With the latter, nobody is told
// that a lock is free: who waits looks every 50 to 100 ms. The documentation of package single says what holds on a cluster.
//
// It does not take a *redis.Ring, which looks for the keys of a shard that this process cannot reach on another shard. Other
// processes still reach the first one, and two would hold the same lock. What a client of another type does with keys is not
// known: hand over the client that it wraps, or see [Trusted]. As New has no error to return, every Do and Subscribe of a driver
// of such a client fails and says why.
//
// The client's MaxRetries does not matter: commands are sent once. ContextTimeoutEnabled does: without it the client
// ignores deadlines while it reads, and each call costs a goroutine that may linger for the client's ReadTimeout.
// A subscription dials as the client's options say, without the hooks added to the client. While commands to a cluster fail,
// the driver has the client look for the masters again, once a second at most.
func New(client redis.UniversalClient, opts ...Option) drivers.Driver {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	switch client := client.(type) {
	case *redis.Client:
		return &subscriber{driver: driver{client: client, bounded: client.Options().ContextTimeoutEnabled}}
	case *redis.ClusterClient:
		return &spread{driver{client: client, bounded: client.Options().ContextTimeoutEnabled, follows: true, cluster: client}}
	case *redis.Ring:
		return &refused{why: "a redis.Ring cannot keep locks: it moves the keys of a shard that this process does not reach to " +
			"another shard, and whoever reaches the first one still finds them there, so that two hold the same lock"}
	}
	if o.trusted {
		return &spread{driver{client: client, follows: true}}
	}
	return &refused{why: fmt.Sprintf("where a %T keeps a key is not known: hand over the *redis.Client or *redis.ClusterClient "+
		"that it wraps, or vouch for it with the option Trusted", client)}
}

// Option changes what [New] makes.
type Option func(*options)

type options struct{ trusted bool }

// Trusted vouches for a client of a type that the driver does not know, such as a wrapper of your own: it keeps each key on one
// server, or one shard of a Redis Cluster, whichever servers this process can reach. A wrapper of a redis.Ring does not. The
// driver knows nothing else about such a client, and treats it as one of a cluster without ContextTimeoutEnabled. If it hides a
// *redis.ClusterClient, the ClusterStateReloadInterval says how long that goes on to ask a master that has died.
//
// The option changes nothing for the types that New knows.
func Trusted() Option { return func(o *options) { o.trusted = true } }

// spread is the driver of a client that knows several servers.
type spread struct{ driver }

// Spread implements [drivers.Spread].
func (*spread) Spread() {}

// refused is the driver of a client that does not do for locks.
type refused struct {
	why  string
	gate drivers.Gate
}

func (d *refused) enter(ctx context.Context) error {
	if err := d.gate.Enter(ctx); err != nil {
		return err
	}
	return drivers.NotSent(fmt.Errorf("goredis: %s", d.why))
}

func (d *refused) Do(ctx context.Context, _ ...drivers.Command) ([]drivers.Reply, error) {
	return nil, d.enter(ctx)
}

// Subscribe implements [drivers.Subscriber].
func (d *refused) Subscribe(ctx context.Context, _ drivers.Listener) (drivers.Subscription, error) {
	return nil, d.enter(ctx)
}

func (d *refused) Close() error {
	d.gate.Shut()
	return nil
}
