// Package etcd keeps locks in etcd, whose members agree on every lock by consensus.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"h1:2379", "h2:2379", "h3:2379"}})
//	l := etcd.New(client)
//
// A program that imports the package can also name it in a configuration: etcd://h1:2379,h2:2379,h3:2379.
//
// # What it promises
//
// A lock has at most one holder at a time, also while members fail, restart or are partitioned, as long as etcd keeps
// what a majority of its members has confirmed. The fencing token of a lock is the revision of the transaction that
// created its entry. Revisions only grow, and no clock takes part in them.
//
// Expiry is the one thing that depends on time. The leader of etcd ends a lease when its TTL is over by the leader's
// own monotonic clock, and a new leader gives every lease its whole TTL again. So a lock may end late, and not early,
// unless the clock of the leader runs faster than that of the holder by more than a hundredth. A program that has to be
// sure even then adds [Guard] to the transaction that writes.
//
// # TTLs
//
// etcd counts TTLs in whole seconds. They are rounded up. etcd also has a shortest TTL, which is one and a half of its
// election timeout, rounded up to a second: with the default settings 2 s. With a shorter TTL, the lock of a holder
// that has died is free after that time. A Lease keeps to the TTL that the caller asked for.
//
// # Interoperation
//
// A lock has a directory of entries, as concurrency.Mutex of etcd's client has it, and "etcdctl lock": the entry that
// was created first has the lock, and the others wait for it in their order. With Prefix("") and the key "backup",
// locks exclude those of NewMutex(session, "backup"). The characters / and % of keys are written as %2F and %25.
package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
)

const (
	// DefaultPrefix is put before every key unless [Prefix] says otherwise.
	DefaultPrefix = "lock:"

	// DefaultTimeout bounds a request unless [Timeout] says otherwise.
	DefaultTimeout = 5 * time.Second
)

// Option changes what [New] and [NewBackend] build.
type Option func(*Backend)

// Prefix sets what is put before every key, to keep locks apart from other data. The default is [DefaultPrefix].
// Programs that should exclude each other need the same prefix.
func Prefix(p string) Option { return func(b *Backend) { b.prefix = p } }

// Timeout bounds one request to etcd. A call that takes longer fails with locker.ErrUnavailable. Zero means the
// default, [DefaultTimeout]. The timeout should be longer than an election of etcd, which takes a second or two.
func Timeout(d time.Duration) Option {
	return func(b *Backend) {
		if d > 0 {
			b.timeout = d
		}
	}
}

// Logger makes [New] ask the members of etcd in the background which version they have and how they are, and log a
// warning for each that weakens a promise. The warning says what to do. A member that does not answer is asked again
// every minute. nil means that nobody is asked, which is the default. "locker doctor" says more.
func Logger(l *slog.Logger) Option { return func(b *Backend) { b.logger = l } }

// Backend keeps locks in etcd. It implements [locker.Backend] and the optional interfaces [locker.Queuer],
// [locker.ManyAcquirer], [locker.Verifier] and [locker.LossNotifier], and inspect.Inspector, inspect.Watcher and
// inspect.Examiner. It is safe for concurrent use.
type Backend struct {
	client      *clientv3.Client
	unfit       error        // why client cannot be used; nil: it can
	logins      *logins      // of a client that a configuration has opened, and nil otherwise
	connections *connections // the same
	kv          clientv3.KV
	leases      pb.LeaseClient
	owned       bool // Close closes the client
	prefix      string
	timeout     time.Duration
	renewals    renewals
	losses      watches // of entries of locks that are held
	changes     watches // of directories, for Watch; apart, because some refusals end the stream
	cleanup     cleanup
	logger      *slog.Logger // nil: members are not looked at
	looking     sync.WaitGroup

	open context.Context // ends when Close has waited long enough
	stop context.CancelFunc

	mu     sync.Mutex
	closed bool
}

// New returns a Client that keeps its locks in the etcd behind client. New sends nothing. Closing the Client does not
// close client, which the program may use for other things as well.
//
// The KV, Lease and Watcher of client must be those that [clientv3.New] has made. If they were replaced, for example by
// those of package namespace, all calls fail with locker.ErrInvalid: the locks would be outside of the namespace. Give
// a client without one, and the namespace as the first part of [Prefix].
func New(client *clientv3.Client, opts ...Option) *locker.Client {
	return locker.NewClient(NewBackend(client, opts...))
}

// NewBackend returns a Backend, for programs that do without a [locker.Client]. Call Close at the end.
func NewBackend(client *clientv3.Client, opts ...Option) *Backend {
	b := &Backend{client: client, prefix: DefaultPrefix, timeout: DefaultTimeout}
	for _, opt := range opts {
		opt(b)
	}
	b.open, b.stop = context.WithCancel(context.Background())
	if b.unfit = replaced(client); b.unfit != nil {
		return b
	}
	// These make one attempt, and fail if no member can be reached. Those of client wait until one can be, and repeat
	// some requests a hundred times.
	wire := client.ActiveConnection()
	members := conn{wire, b.logins, b.connections}
	if b.logins != nil {
		// A member that knows no leader would keep a login until it times out.
		b.logins.open, b.logins.client = b.open, pb.NewAuthClient(conn{wire, nil, b.connections})
	}
	if s := b.connections; s != nil {
		local := pb.NewMaintenanceClient(wire)
		s.open, s.probe = b.open, func(ctx context.Context) { _, _ = local.Status(ctx, &pb.StatusRequest{}) }
	}
	b.kv = clientv3.NewKVFromKVClient(pb.NewKVClient(members), nil)
	b.leases = pb.NewLeaseClient(members)
	b.renewals.begin(b.open, b.leases, b.connections.suspect)
	b.losses.begin(b.open, pb.NewWatchClient(members))
	b.changes.begin(b.open, pb.NewWatchClient(members))
	b.cleanup.begin(b.open)
	if b.logger != nil {
		b.looking.Go(func() { b.look(b.logger) })
	}
	return b
}

// replaced returns an error if client is not as clientv3.New has made it. The Backend sends requests over the
// connection of client, and what wraps its interfaces would see some of them only.
func replaced(client *clientv3.Client) error {
	own := reflect.TypeFor[clientv3.Client]().PkgPath()
	for _, v := range []any{client.KV, client.Lease, client.Watcher} {
		if t := reflect.TypeOf(v); t == nil || t.Kind() != reflect.Pointer || t.Elem().PkgPath() != own {
			return fmt.Errorf("%w: the client of etcd has a %T, which clientv3.New does not make: give a client without it, "+
				"and a namespace as the first part of the prefix", locker.ErrInvalid, v)
		}
	}
	return nil
}

// closeGrace is how long Close waits for the clean-up of failed attempts and for leases that are no longer used. They
// end with their TTL otherwise.
const closeGrace = time.Second

// Close implements io.Closer. Locks that are held stay taken until their TTL ends.
func (b *Backend) Close() error {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed || b.unfit != nil {
		b.stop()
		return nil //nolint:nilerr // a backend that cannot be used has nothing to end
	}
	b.cleanup.close(closeGrace)
	b.stop()
	b.renewals.wait()
	b.losses.wait()
	b.changes.wait()
	b.cleanup.wait()
	b.logins.wait()
	b.connections.wait()
	b.looking.Wait()
	if b.owned {
		return b.client.Close()
	}
	return nil
}

// undated is a context that does not tell its deadline. etcd's client tells it to the server otherwise, and sends a
// transaction again if the server gives up shortly before the client.
type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// bounded returns a context for one operation: it ends with ctx, after limit, and with the Backend. It fails if the
// Backend is closed, or its client unfit.
func (b *Backend) bounded(ctx context.Context, limit time.Duration) (context.Context, func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, nil, locker.ErrClosed
	}
	if b.unfit != nil {
		return nil, nil, b.unfit
	}
	ctx, cancel := context.WithCancelCause(undated{ctx})
	late := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no answer from etcd within %v", limit)) })
	closed := context.AfterFunc(b.open, func() { cancel(locker.ErrClosed) })
	return ctx, func() { late.Stop(); closed(); cancel(nil) }, nil
}
