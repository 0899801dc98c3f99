// Package single keeps locks on one Redis server. The server may also be a Redis Cluster, or a replicated Redis behind
// a client that finds the master. To acquire a lock that is free takes one round trip, and to release it takes one.
// Calls that happen at the same time share round trips.
//
//	l := single.New(goredisdriver.New(rdb))
//
// Waiters queue on the server: each release grants the lock to the Client that has waited longest, and notifies it.
// Waiters do not poll, and nobody overtakes them. A waiter that has died delays the others by two seconds. A process
// that is stopped while it waits delays them by at most eight seconds.
//
// # What it promises
//
// While the server runs and keeps its data, a lock has at most one holder at a time. Every acquisition gets a fencing
// token greater than all earlier ones. A server can lose data by a restart without persistence, by a failover to a
// replica that lags, or by eviction. It then forgets locks, and two clients can hold the same lock until the first
// one's lease ends. With [Guard], a server that may have forgotten locks grants none until they have ended, and
// [WaitReplicas] makes it rarer that a failover forgets some. Tokens grow in any case, because they follow the server's
// clock. Where two holders would do harm, let the resource check the token: no lock alone can prevent them.
//
// # Redis Cluster
//
// With a client that knows clusters (go-redis's ClusterClient, rueidis or valkey-go), each lock is on one master,
// together with all keys that belong to it. Redirections are followed. Some things are different from one server:
//
//   - While a slot migrates, its keys are on two servers, and Redis refuses a script if one of its keys is not there
//     (TRYAGAIN). Locks of that slot can be neither acquired, verified nor released until the migration has ended.
//     Calls wait for that, for up to half of the [Timeout] or of the TTL, whichever is less, and then fail with
//     locker.ErrUnavailable. TryLock waits, too. Lock goes on to wait for as long as locker.Patience says. Unlock waits
//     for a second, and goes on in the background. Renewals are refused only while the lock and its counter, which all
//     locks of the slot share, are on different servers. If that is shorter than the TTL, no lock is lost or held
//     twice.
//   - A master that hangs or is down stops only the locks that it has, if the other masters go on serving. By default
//     (cluster-require-full-coverage yes) they stop, too, with CLUSTERDOWN, when they have noticed the failure.
//   - A replica that takes over from a master that has died may lack its latest locks. Then two clients can hold a
//     lock, as described above, and tokens still grow. After CLUSTER FAILOVER (without FORCE or TAKEOVER), the replica
//     has all locks.
//   - Waiters are notified on sharded channels, which Redis 7 and Valkey have. A Client has a connection for each hash
//     slot in which it waits, and at most 64 of them. With more, or on older servers, waiters poll every 50 to 100 ms.
//
// A client that knows one server only, as redigo's, gets locker.ErrUnavailable (MOVED) for locks on other servers.
package single

import (
	"log/slog"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/redis/settings"
)

// DefaultPrefix is put before every key unless [Prefix] says otherwise.
const DefaultPrefix = "lock:"

// Option changes what [New] builds.
type Option func(*options)

type options struct {
	node.Options
	logger *slog.Logger
}

// Prefix sets what is put before every key, to keep locks apart from other data. The default is [DefaultPrefix]. With
// an empty prefix, the lock's key in Redis is the key given to Lock, verbatim. The lock then excludes programs that
// lock the same key by other means with SET NX PX and a random value. Programs that should exclude each other need the
// same prefix.
func Prefix(p string) Option { return func(o *options) { o.Prefix = p } }

// Name sets the name of the server in errors, such as its address. The default is "redis".
func Name(name string) Option { return func(o *options) { o.Name = name } }

// Timeout bounds one exchange with the server. A call that takes longer fails with locker.ErrUnavailable. The TTL
// bounds an acquisition as well. Zero means the default, [drivers.DefaultTimeout].
func Timeout(d time.Duration) Option { return func(o *options) { o.Timeout = d } }

// Logger makes [New] look at the settings of the server once, in the background, and log a warning for each that
// weakens a promise: eviction, for example, or an append-only file that lacks the latest writes. Each warning says
// which promise, and what to set. It is silent about what the server's user may not see; "locker doctor" is not. There
// is no look at a Redis Cluster, because its client does not say which server answers. nil means no look, which is the
// default.
func Logger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

func newOptions(opts []Option) options {
	o := options{Options: node.Options{Name: "redis", Prefix: DefaultPrefix}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// New returns a Client that keeps its locks on the Redis server behind d. New does not wait for the server: if it is
// down, the first call that needs it fails. Without [Logger] and [Guard], New sends nothing. If an option cannot be
// used, every call fails with an error that matches locker.ErrInvalid. Closing the Client closes d.
func New(d drivers.Driver, opts ...Option) *locker.Client {
	o := newOptions(opts)
	if err := o.misuse(d); err != nil {
		return locker.NewClient(node.Unusable(err, d))
	}
	if d, ok := d.(drivers.Cluster); ok {
		return locker.NewClient(node.NewCluster(d, o.Options))
	}
	audit := settings.Begin(o.logger, o.Timeout, settings.Use{Guard: o.Guard, Replicas: o.Replicas.Want},
		settings.Server{Name: o.Name, Driver: d})
	o.BeforeClose = audit.Close
	return locker.NewClient(node.New(d, o.Options))
}
