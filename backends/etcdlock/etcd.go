// Package etcdlock keeps locks in etcd, whose members agree on every lock by consensus.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"h1:2379", "h2:2379", "h3:2379"}})
//	l := etcdlock.New(client)
//
// A program that imports the package can also name it in a configuration: etcd://h1:2379,h2:2379,h3:2379. Servers that
// only speak the protocol of etcd, such as kine, are refused with locker.ErrInvalid, before the first lock is granted.
//
// # What it promises
//
// A lock has at most one holder at a time, also while members fail, restart or are partitioned, as long as etcd keeps
// what a majority of its members has confirmed. The fencing token of a lock comes from the revision of the transaction
// that created its entry. Revisions only grow. They are counted from the time at which the prefix was first used, and
// no other clock takes part in tokens.
//
// Expiry is the one thing that depends on time. A member of etcd ends a lease when its TTL is over by its own monotonic
// clock, and a new leader gives every lease its whole TTL again. A leader that has stood still does not know what
// others have renewed meanwhile. So the lease of a lock is never renewed: an extension moves the lock to a new one. A
// lock may end late, and not early, unless the clock of a member runs faster than that of the holder by more than a
// hundredth. A program that has to be sure even then adds [Condition] to the transaction that writes.
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
// locks exclude those of NewMutex(session, "backup"). The characters / and % of keys are written as %2F and %25. All
// permits, or all readers and writers, of a key have a directory that nothing else can be in.
package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backend/cleanup"
)

const (
	// DefaultPrefix is put before every key unless [Prefix] says otherwise.
	DefaultPrefix = "lock:"

	// DefaultTimeout bounds a request unless [Timeout] says otherwise.
	DefaultTimeout = 5 * time.Second
)

// Option changes what [New] builds.
type Option func(*store)

// Prefix sets what is put before every key, to keep locks apart from other data. The default is [DefaultPrefix].
// Programs that should exclude each other need the same prefix. It must not be another prefix of locks and one of its
// keys, with a slash: "lock:team/" is in the way of the key team under "lock:".
func Prefix(p string) Option { return func(b *store) { b.prefix = p } }

// Timeout bounds one request to etcd. A call that takes longer fails with locker.ErrUnavailable. Zero means the
// default, [DefaultTimeout]. The timeout should be longer than an election of etcd, which takes a second or two.
func Timeout(d time.Duration) Option {
	return func(b *store) {
		if d > 0 {
			b.timeout = d
		}
	}
}

// Logger makes [New] ask the members of etcd in the background which version they have and how they are, and log a
// warning for each that weakens a promise. The warning says what to do. A member that does not answer is asked again
// every minute. nil means that nobody is asked, which is the default. "locker doctor" says more.
func Logger(l *slog.Logger) Option { return func(b *store) { b.logger = l } }

// backend keeps locks in etcd. It implements [backend.Backend] and the optional interfaces [backend.Queuer],
// [backend.ManyAcquirer], [backend.Verifier], [backend.Binder], [backend.LossNotifier] and [backend.WantedNotifier],
// and inspect.Inspector, inspect.Lister, inspect.Watcher, inspect.Examiner and inspect.FenceRaiser. It is safe for
// concurrent use.
type store struct {
	client      *clientv3.Client
	unfit       error // why client cannot be used; nil: it can
	identity    identity
	logins      *logins      // of a client that a configuration has opened, and nil otherwise
	connections *connections // the same
	kv          clientv3.KV
	leases      pb.LeaseClient
	owned       bool // Close closes the client
	prefix      string
	timeout     time.Duration
	numbers     numbers  // of leases
	rounds      rounds   // of extensions
	renewals    renewals // of the leases of waiters
	losses      watches  // of entries of locks that are held
	changes     watches  // of directories, for Watch; apart, because some refusals end the stream
	chores      cleanup.Queue
	logger      *slog.Logger // nil: members are not looked at
	auditing    sync.WaitGroup

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
	return locker.NewClient(newBackend(client, opts...))
}

// newBackend returns what [New] makes a Client of.
func newBackend(client *clientv3.Client, opts ...Option) *store {
	b := &store{client: client, prefix: DefaultPrefix, timeout: DefaultTimeout}
	b.identity.asking = make(chan struct{}, 1)
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
	b.leases, b.identity.leases = pb.NewLeaseClient(members), pb.NewLeaseClient(wire)
	b.renewals.begin(b.open, b.leases, b.connections.suspect)
	b.losses.begin(b.open, pb.NewWatchClient(members))
	b.changes.begin(b.open, pb.NewWatchClient(members))
	if b.logger != nil {
		b.auditing.Go(func() { b.audit(b.logger) })
	}
	return b
}

// replaced returns an error if client is not as clientv3.New has made it. The backend sends requests over the
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
func (b *store) Close() error {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed || b.unfit != nil {
		b.stop()
		return nil //nolint:nilerr // a backend that cannot be used has nothing to end
	}
	b.chores.Close(closeGrace)
	b.stop()
	b.rounds.wait()
	b.renewals.wait()
	b.losses.wait()
	b.changes.wait()
	b.logins.wait()
	b.connections.wait()
	b.auditing.Wait()
	if b.owned {
		return b.client.Close()
	}
	return nil
}

// undated is a context that does not tell its deadline. etcd's client tells it to the server otherwise, and sends a
// transaction again if the server gives up shortly before the client.
type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// bounded returns a context for one operation: it ends with ctx, after limit, and with the backend. It fails if the
// store is closed, or its client unfit.
func (b *store) bounded(ctx context.Context, limit time.Duration) (context.Context, func(), error) {
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

// A lock has one entry in its directory for its owner, and one for each waiter. The name of an entry ends with the
// token of its owner, and its value is the owner's label. The entry that was created first has the lock.

// keptValue is the value of an entry whose owner has released it with Keep. It is not a label, because it has a |.
const keptValue = "|kept"

var escapes = strings.NewReplacer("%", "%25", "/", "%2F")

// dir returns the directory of a lock. The directories of different keys have no common entries, because a key has no
// slash in it.
func (b *store) dir(key string) string { return b.prefix + escapes.Replace(key) + "/" }

// entry returns the name of the entry of a token.
func (b *store) entry(key, token string) string { return b.dir(key) + token }

// first reads the entry that has the lock, and counts all entries.
func first(dir string) clientv3.Op { return clientv3.OpGet(dir, clientv3.WithFirstCreate()...) }

// owns says that an entry was created at a revision, and was not released since. If the revision is 0, any will do.
func owns(entry string, revision int64) []clientv3.Cmp {
	same := "="
	if revision == 0 {
		same = ">"
	}
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(entry), same, revision),
		clientv3.Compare(clientv3.Value(entry), "!=", keptValue),
	}
}

// free says that a directory has no entries.
func free(dir string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(dir), "=", 0).WithPrefix()
}

// Acquire implements [backend.Backend]. It makes two round trips: one for the lease, and one for the entry.
func (b *store) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if req.Group != nil {
		return b.acquireEntry(ctx, req)
	}
	grants, err := b.AcquireMany(ctx, []backend.Request{req}, backend.Choice{})
	var about *locker.Error
	if errors.As(err, &about) {
		err = about.Err
	}
	if err != nil {
		return backend.Grant{}, err
	}
	return *grants[0], nil
}

// Capabilities implements [backend.Capable].
func (b *store) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Tokens: true, CommonTokens: true, Blocks: true, Order: true, Labels: true, CountsTime: true,
		Groups: true, Kinds: true,
	}
}

// AcquireMany implements [backend.ManyAcquirer], with one transaction for all entries. etcd limits the size of a
// transaction (--max-txn-ops); the error matches errors.ErrUnsupported if there are too many locks.
func (b *store) AcquireMany(
	ctx context.Context, reqs []backend.Request, _ backend.Choice,
) ([]*backend.Grant, error) {
	ctx, cancel, err := b.bounded(ctx, min(b.timeout, reqs[0].TTL))
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := b.chores.Backlog(); err != nil {
		return nil, unavailable(ctx, err)
	}
	l, err := b.lease(ctx, reqs[0].TTL, len(reqs))
	if err != nil {
		return nil, err
	}
	grants, err := b.writeAll(ctx, reqs, l)
	if err != nil {
		b.revoke(l)
	}
	return grants, err
}

// writeAll writes all entries, if all directories are free.
func (b *store) writeAll(ctx context.Context, reqs []backend.Request, l *lease) ([]*backend.Grant, error) {
	var all []clientv3.Cmp
	var puts, firsts []clientv3.Op
	for _, req := range reqs {
		dir := b.dir(req.Key)
		all = append(all, free(dir))
		puts = append(puts, clientv3.OpPut(dir+req.Token, req.Label, clientv3.WithLease(l.id)))
		firsts = append(firsts, first(dir))
	}
	resp, err := b.kv.Txn(ctx).If(all...).Then(append(puts, b.drawTokens())...).
		Else(append(firsts, b.readTokens())...).Commit()
	if errors.Is(rpctypes.Error(err), rpctypes.ErrTooManyOps) {
		return nil, errors.ErrUnsupported
	}
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	grants, last := make([]*backend.Grant, len(reqs)), resp.Responses[len(reqs)]
	var moves []*move
	for i, req := range reqs {
		if resp.Succeeded {
			g, err := b.granted(ctx, req, newHolding(resp.Header.Revision, l), l.sent, drawn(last))
			if err != nil {
				return nil, err
			}
			grants[i] = &g
			continue
		}
		kvs := resp.Responses[i].GetResponseRange().Kvs
		switch {
		case len(kvs) == 0: // another of the locks is held, or this one has ended since an earlier execution
		case string(kvs[0].Key) != b.entry(req.Key, req.Token):
			return nil, &locker.Error{Op: "trylock", Key: req.Key, Err: heldBy(kvs[0])}
		default:
			h := newHolding(kvs[0].CreateRevision, nil)
			h.mayHave(l)
			g, err := b.granted(ctx, req, h, l.sent, recordOf(last))
			if err != nil {
				return nil, err
			}
			grants[i] = &g
			b.numbers.skip(clientv3.LeaseID(kvs[0].Lease)) // it may be of another backend
			moves = append(moves, b.newMove(req, h))
		}
	}
	if resp.Succeeded {
		return grants, nil
	}
	return grants, b.again(ctx, l, moves, len(reqs))
}

// again answers requests that were executed before: it moves the entries to the new lease. Every request had an entry,
// because one transaction wrote all entries. If one is missing, it has ended since, and again fails.
func (b *store) again(ctx context.Context, l *lease, moves []*move, all int) error {
	if len(moves) < all {
		return fmt.Errorf("%w: a part of the locks has ended meanwhile", locker.ErrUnavailable)
	}
	b.attach(ctx, l, moves)
	for _, m := range moves {
		if err := <-m.outcome; err != nil {
			return err
		}
	}
	return nil
}

// Extend implements [backend.Backend]. It moves the entry to another lease, together with others: see move. If more is
// left of the lease than was asked for, it only looks whether there is the entry.
func (b *store) Extend(ctx context.Context, req backend.Request) error {
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	h := holdingOf(req)
	if err := h.beginExtend(ctx); err != nil {
		return err
	}
	defer h.endExtend()
	if req.Group != nil && req.Group.Kind == backend.Shared {
		if err := b.share(ctx, req, h); err != nil {
			return err
		}
	}
	if err := b.extendAs(ctx, req, h); err != nil {
		return err
	}
	if req.Wanted != nil && req.Group != nil && req.Group.Kind != backend.Permit {
		if is, err := b.isWanted(ctx, req); err == nil && is {
			req.Wanted()
		}
	}
	return nil
}

// extendAs is Extend of what h has.
func (b *store) extendAs(ctx context.Context, req backend.Request, h *holding) error {
	l := h.has()
	if l != nil && l.left() <= req.TTL {
		b.numbers.skip(l.id)
		return b.extend(ctx, b.newMove(req, h))
	}
	entry, err := b.own(ctx, req)
	if err != nil || l != nil {
		return err
	}
	b.numbers.skip(clientv3.LeaseID(entry.Lease))
	return b.extend(ctx, b.newMove(req, h))
}

// successor reads what there is in place of the entry of req: the entry that has the lock. In a group, others have
// places beside it, and only what was kept of it says anything.
func (b *store) successor(req backend.Request) clientv3.Op {
	if req.Group != nil {
		return clientv3.OpGet(keptName(b.dir(req.Key), req.Token))
	}
	return first(b.dir(req.Key))
}

// own reads the entry of req. The error matches locker.ErrNotHeld if it is gone, or released.
func (b *store) own(ctx context.Context, req backend.Request) (*mvccpb.KeyValue, error) {
	entry := b.entry(req.Key, req.Token)
	resp, err := b.kv.Txn(ctx).If(owns(entry, holdingOf(req).revision)...).Then(clientv3.OpGet(entry)).
		Else(b.successor(req)).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if !resp.Succeeded {
		return nil, notHeld(req, kvs)
	}
	return kvs[0], nil
}

// Release implements [backend.Backend].
func (b *store) Release(ctx context.Context, req backend.Request) error {
	inner, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	until, kept := time.Now().Add(req.Keep), (*lease)(nil)
	err = b.release(inner, req, until, &kept)
	if errors.Is(err, locker.ErrUnavailable) {
		b.chores.Repeat(time.Now().Add(req.TTL), func(ctx context.Context) error {
			err := b.release(undated{ctx}, req, until, &kept)
			if errors.Is(err, locker.ErrNotHeld) {
				return nil
			}
			return err
		})
	}
	return err
}

// release deletes the entry of a lock, or writes it again as one that has no owner and ends at until. The lease is no
// longer needed then. kept is the new lease, which a release that is tried again uses again: the entry may have it.
func (b *store) release(ctx context.Context, req backend.Request, until time.Time, kept **lease) error {
	entry, h := b.entry(req.Key, req.Token), holdingOf(req)
	end := []clientv3.Op{clientv3.OpDelete(entry)}
	if keep := time.Until(until); keep > 0 {
		if *kept == nil {
			l, err := b.lease(ctx, keep, 1)
			if err != nil {
				return err
			}
			*kept = l
		}
		if req.Group == nil {
			end = []clientv3.Op{clientv3.OpPut(entry, keptValue, clientv3.WithLease((*kept).id))}
		} else {
			text, err := b.keptText(ctx, req, h)
			if err != nil {
				return err
			}
			end = append(end, clientv3.OpPut(keptName(b.dir(req.Key), req.Token), text, clientv3.WithLease((*kept).id)))
		}
	}
	resp, err := b.kv.Txn(ctx).If(owns(entry, h.revision)...).Then(end...).Else(b.successor(req)).Commit()
	if err != nil {
		return unavailable(ctx, err)
	}
	b.leave(h.ended())
	if resp.Succeeded {
		return nil
	}
	first := resp.Responses[0].GetResponseRange().Kvs
	if l := *kept; l != nil && (len(first) == 0 || clientv3.LeaseID(first[0].Lease) != l.id) {
		b.revoke(l) // no earlier try was executed
	}
	return notHeld(req, first)
}

// Verify implements [backend.Verifier]. The answer is from a majority of the members.
func (b *store) Verify(ctx context.Context, req backend.Request) error {
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = b.own(ctx, req)
	return err
}
