package goredisdriver

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker/drivers"
)

// New returns a driver that uses client. The client belongs to the caller, and Close leaves it open. It must be one of:
//
//   - A *redis.Client, including one that follows the master of a Sentinel.
//   - A *redis.ClusterClient. All keys of one script must be in one slot. The documentation of package single describes
//     locks on a cluster.
//   - A client of another type with the option [Trusted].
//
// A *redis.Ring is refused. A process that cannot reach a shard uses another shard for its keys, while other processes
// still use the first one, so two of them could hold the same lock. Other types are refused because it is not known
// where they keep keys. New has no error to return: every Do and Subscribe of the driver of a refused client fails with
// the reason.
//
// MaxRetries of the client has no effect, because commands are sent only once. Set ContextTimeoutEnabled: without it,
// the client ignores deadlines while it reads, and each call needs a goroutine that may remain for the client's
// ReadTimeout.
//
// If a server answers as a replica does, the driver of a *redis.Client may send QUIT, so that the client connects
// again.
//
// Subscriptions dial with the client's options, but without hooks that were added to the client. While commands to a
// cluster fail, the driver makes the client look up the masters again, at most once a second.
func New(client redis.UniversalClient, opts ...Option) drivers.Driver {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	switch client := client.(type) {
	case *redis.Client:
		return &subscriber{driver: driver{client: client, bounded: client.Options().ContextTimeoutEnabled}}
	case *redis.ClusterClient:
		bounded := client.Options().ContextTimeoutEnabled
		return &cluster{driver{client: client, bounded: bounded, follows: true, cluster: client}}
	case *redis.Ring:
		return &refused{why: "a redis.Ring cannot keep locks: a process that cannot reach a shard uses another " +
			"shard for its keys, while other processes still use the first one, so that two of them could hold the " +
			"same lock"}
	}
	if o.trusted {
		return &trusted{driver{client: client, follows: true}}
	}
	return &refused{why: fmt.Sprintf("it is not known where a %T keeps a key: pass the *redis.Client or "+
		"*redis.ClusterClient that it wraps, or give drivers/goredisdriver.New the option Trusted", client)}
}

// Option changes the driver that [New] returns.
type Option func(*options)

type options struct{ trusted bool }

// Trusted makes [New] accept a client of a type that it does not know, such as a wrapper. The caller asserts that the
// client keeps each key on one server, or on one shard of a Redis Cluster, whichever servers this process can reach. A
// wrapper of a redis.Ring does not do that.
//
// The driver treats such a client like a *redis.ClusterClient without ContextTimeoutEnabled. If it wraps a
// *redis.ClusterClient, that goes on asking a dead master for up to its ClusterStateReloadInterval. Waiters are not
// notified when a lock becomes free, but poll every 50 to 100 ms.
//
// Trusted has no effect on the types that New knows.
func Trusted() Option { return func(o *options) { o.trusted = true } }

// cluster is the driver of a *redis.ClusterClient.
type cluster struct{ driver }

// Cluster implements [drivers.Cluster].
func (*cluster) Cluster() {}

// trusted is the driver of a client that may use several servers.
type trusted struct{ driver }

// Cluster implements [drivers.Cluster].
func (*trusted) Cluster() {}

// refused is the driver of a client that cannot be used for locks.
type refused struct {
	why       string
	lifecycle drivers.Lifecycle
}

func (d *refused) enter(ctx context.Context) error {
	if err := d.lifecycle.Enter(ctx); err != nil {
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
	d.lifecycle.Shut()
	return nil
}
