// Package single keeps locks on one Redis server, or one Redis Cluster or replicated Redis behind a client that knows how
// to find the master. One round trip to acquire, one to release.
//
//	l := single.New(goredis.New(rdb))
//
// # What it promises
//
// While the server runs and keeps its data, a lock has one holder at a time, and every acquisition gets a fencing token
// greater than all before it. If the server loses data (a restart without persistence, a failover to a replica that
// lags, eviction), it forgets locks, and two clients can hold the same one until the first one's lease ends; tokens
// still grow, by the server's clock. Use package redlock, or fence the resource, where that would do harm.
//
// # Redis Cluster
//
// With a client that knows clusters, go-redis's ClusterClient or rueidis, each lock is on one master, with all that belongs
// to it, and redirections are followed. What is different from one server:
//
//   - While a slot migrates, its keys are in two places, and Redis refuses scripts that need several of them (TRYAGAIN).
//     Locks of that slot can be neither acquired nor released until it has arrived: calls fail with
//     locker.ErrUnavailable, releases go on in the background, and whoever is in the queue bears it for as
//     long as locker.Patience says. Renewals are refused only while one of a lock's two keys is here and the other there. Nothing is lost or held
//     twice, as long as that is shorter than the TTL.
//   - A master that hangs or is down is missed by the locks on it alone, provided that the others go on serving; by
//     default (cluster-require-full-coverage yes) they stop, with CLUSTERDOWN, when they have noticed.
//   - A replica that takes over for a master that has died may lack its latest locks: exclusion is lost as above, tokens
//     still grow. After CLUSTER FAILOVER (without FORCE or TAKEOVER) it has them all.
//   - Nobody is told that a lock is free: who waits looks every 50 to 100 ms.
//
// A client that knows one server only, as redigo's, gets locker.ErrUnavailable (MOVED) for the locks of the others.
package single

import (
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/node"
)

// DefaultPrefix is put before every key unless [Prefix] says otherwise.
const DefaultPrefix = "lock:"

// Option changes what [New] builds.
type Option func(*options)

type options struct {
	node.Options
	plain bool
}

// Prefix is put before every key, to keep locks apart from other data. It may be empty: then the lock's key in Redis is
// the key given to Lock, verbatim, and it excludes programs that lock the same key with SET NX PX and a random value by
// other means. Programs that should exclude each other need the same prefix.
func Prefix(p string) Option { return func(o *options) { o.Prefix = p } }

// Name is what errors call the server, such as its address. Without it they say "redis".
func Name(name string) Option { return func(o *options) { o.Name = name } }

// Timeout bounds one exchange with the server: after it, a call that has no other bound fails with
// locker.ErrUnavailable. Zero or not given: 5 s. An acquisition is bounded by its TTL too.
func Timeout(d time.Duration) Option { return func(o *options) { o.Timeout = d } }

// FIFO says whether those who wait for a lock queue up on the server; they do unless FIFO(false) is given. Then each
// release hands the lock to the Client that has waited longest and tells it: nobody polls and nobody overtakes. A waiter
// that has died delays the others by two seconds, a process that is stopped while it waits by eight at most.
//
// FIFO(false) keeps to one plain key per lock, beside its counter: who waits is told when it is free and then competes
// for it. Both kinds of Clients exclude each other, but one that queues can be overtaken, again and again, by those that
// do not, and by other programs that lock the same key.
func FIFO(on bool) Option { return func(o *options) { o.plain = !on } }

// New returns a Locker that keeps its locks on the Redis server behind d. It sends nothing yet: a server that is down
// shows when a lock is asked for. Closing the Locker closes d.
func New(d drivers.Driver, opts ...Option) *locker.Client {
	o := options{Options: node.Options{Name: "redis", Prefix: DefaultPrefix}}
	for _, opt := range opts {
		opt(&o)
	}
	if d, ok := d.(drivers.Spread); ok {
		c := node.NewCluster(d, o.Options)
		if o.plain {
			return locker.NewClient(c)
		}
		return locker.NewClient(node.QueuedCluster{Cluster: c})
	}
	n := node.New(d, o.Options)
	if o.plain {
		return locker.NewClient(n)
	}
	return locker.NewClient(node.QueuedNode{Node: n})
}
