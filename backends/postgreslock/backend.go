package postgreslock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backend/cleanup"
)

// store is the store of locks behind a Client of [New]. It implements backend.Backend, backend.Queuer,
// backend.Verifier, backend.Binder, backend.ManyAcquirer, backend.Capable, inspect.Inspector, inspect.Lister and
// inspect.FenceRaiser.
type store struct {
	options
	pool    *pgxpool.Pool
	sql     statements
	channel string // on which the waiters of this backend are notified

	open context.Context // ends when Close begins
	shut context.CancelFunc
	ctx  context.Context // of all requests; ends when Close has waited for long enough
	stop context.CancelFunc

	extensions, releases *joiner

	chores cleanup.Queue
	calls  sync.WaitGroup // in progress, and what they wait for; Add with mu held while closed is false, or in a call
	tasks  sync.WaitGroup // what calls and chores have begun

	mu        sync.Mutex // guards what follows
	closed    bool
	reset     time.Time // when leave closed the connections of the pool
	listening bool
	waiting   map[string]chan bool // by ticket: has a value if the waiter should look
}

// newBackend returns what [New] makes a Client of.
func newBackend(pool *pgxpool.Pool, opts ...Option) *store {
	o := newOptions(opts)
	b := &store{
		options: o, pool: pool, sql: newStatements(o.schema), channel: "locker_" + backend.NewToken(),
		waiting: make(map[string]chan bool),
	}
	b.open, b.shut = context.WithCancel(context.Background())
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.chores.Timeout = b.timeout
	b.extensions, b.releases = b.joinsExtensions(), b.joinsReleases()
	return b
}

// enter begins a call. The caller must call calls.Done when it ends.
func (b *store) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return locker.ErrClosed
	}
	b.calls.Add(1)
	return nil
}

// enterAttempt is enter for calls that may leave something to clean up.
func (b *store) enterAttempt() error {
	if err := b.chores.Backlog(); err != nil {
		return unavailable(err)
	}
	return b.enter()
}

// closeGrace is how long Close waits for requests in progress before it interrupts them.
const closeGrace = time.Second

// Close ends the waiting calls and the background work. What an attempt has left in the store and could not be undone
// by then ends with its TTL.
func (b *store) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.shut()
	began, grace := time.Now(), time.AfterFunc(closeGrace, b.stop)
	b.calls.Wait()
	b.chores.Close(closeGrace - time.Since(began))
	b.tasks.Wait()
	grace.Stop()
	b.stop()
	if b.owned {
		b.pool.Close()
	}
	return nil
}

// maxName is how many bytes of a name are stored as they are. An index cannot have much longer values.
const maxName = 1024

// name returns the name of the row for a key. A long name ends with a hash instead of its rest.
func (b *store) name(key string) []byte {
	name := []byte(b.prefix + key)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256(name)
	return slices.Concat(name[:maxName], sum[:])
}

// attempt is the answer to a request for a lock.
type attempt struct {
	fence   uint64 // 0: refused
	held    locker.HeldError
	permits []int
	gone    bool // the lock that is to be upgraded is not held
}

func readAttempt(row pgx.Row) (a attempt, err error) {
	var fence, remaining *int64
	var label *string
	err = row.Scan(&fence, &remaining, &label)
	a.set(fence, remaining, label)
	return a, err
}

func (a *attempt) set(fence, remaining *int64, label *string) {
	if fence != nil {
		a.fence = uint64(*fence)
	}
	if remaining != nil {
		a.held.Remaining = time.Duration(*remaining) * time.Microsecond
	}
	if label != nil {
		a.held.Label = *label
	}
}

// Acquire implements [backend.Backend].
func (b *store) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := b.enterAttempt(); err != nil {
		return backend.Grant{}, err
	}
	defer b.calls.Done()
	name := b.name(req.Key)
	a, err := b.ask(ctx, &req, name, "")
	switch {
	case err != nil:
		b.undo(name, req.Token, "", req.TTL, err)
		return backend.Grant{}, unavailable(err)
	case a.gone:
		return backend.Grant{}, locker.ErrNotHeld
	case a.fence == 0:
		return backend.Grant{}, &a.held
	}
	return a.granted(&req, req.Fences), nil
}

// ask makes one request for what req wants. With a ticket, it gets a place in the queue if it is refused.
func (b *store) ask(ctx context.Context, req *backend.Request, name []byte, ticket string) (attempt, error) {
	if req.Group != nil {
		return b.askForEntry(ctx, req, name, ticket)
	}
	return request(ctx, b, readAttempt, b.sql.acquire,
		name, req.Token, req.Label, microseconds(req.TTL), ticket, b.channel)
}

func (a *attempt) granted(req *backend.Request, fences int) backend.Grant {
	return backend.Grant{Fence: a.fence, Fences: fences, Permits: a.permits, Private: privateOf(req)}
}

// Extend implements [backend.Backend].
func (b *store) Extend(ctx context.Context, req backend.Request) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.calls.Done()
	extend := b.extensions.do
	if shares(&req) {
		extend = b.share
	}
	was, err := extend(&change{
		ctx: ctx, name: b.name(req.Key), token: req.Token, ttl: microseconds(req.TTL), asks: req.Wanted != nil,
	})
	if err != nil {
		return unavailable(err)
	}
	if was == "wanted" {
		req.Wanted()
		return nil
	}
	return notHeld(was)
}

// Capabilities implements [backend.Capable].
func (b *store) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Tokens: true, CommonTokens: true, Blocks: true, Order: true, Labels: true, CountsTime: true,
		AnswersWanted: true, Some: true, Groups: true, Kinds: true,
	}
}

// Release implements [backend.Backend].
func (b *store) Release(ctx context.Context, req backend.Request) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.calls.Done()
	name, until := b.name(req.Key), time.Now().Add(req.Keep)
	release := func(ctx context.Context) (string, error) {
		if keep := microseconds(max(0, time.Until(until))); keep > 0 { // unlike the others, it waits for the disk
			return request(ctx, b, text, b.sql.release, name, req.Token, keep)
		}
		return b.releases.do(&change{ctx: ctx, name: name, token: req.Token})
	}
	was, err := release(ctx)
	if err != nil {
		b.chores.Repeat(time.Now().Add(req.TTL), func(ctx context.Context) error {
			_, err := release(ctx)
			return err
		})
		return unavailable(err)
	}
	return notHeld(was)
}

// Verify implements [backend.Verifier].
func (b *store) Verify(ctx context.Context, req backend.Request) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.calls.Done()
	was, err := request(ctx, b, text, b.sql.verify, b.name(req.Key), req.Token, int64(req.Fence))
	if err != nil {
		return unavailable(err)
	}
	return notHeld(was)
}

// Bind implements [backend.Binder], for the transaction of a call of [InTx]. It takes effect while the lock's row
// belongs to the owner of the grant, whichever lease has it.
func (b *store) Bind(ctx context.Context, req backend.Request, to any) error {
	tx, ok := to.(*transaction)
	if !ok {
		return errors.ErrUnsupported
	}
	return tx.verify(ctx, b, req)
}

// maxStep is how many locks are acquired in one step at most. For each of them, the transaction has an entry in the
// server's lock table until it ends. All users of the server share that table, and a table that is full fails their
// statements. It has room for 64 entries (max_locks_per_transaction) for each connection that the server allows.
const maxStep = 64

var errStep = fmt.Errorf("more than %d locks are not acquired in one step: %w", maxStep, errors.ErrUnsupported)

// AcquireMany implements [backend.ManyAcquirer], in one transaction, for up to 64 locks. If the answer depends on other
// transactions that are changing some of the locks, it takes a second one, which waits for those.
func (b *store) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	n := cmp.Or(c.N, len(reqs))
	if len(reqs) > maxStep {
		return nil, errStep
	}
	if err := b.enterAttempt(); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	names, tokens, closed := make([][]byte, len(reqs)), make([]string, len(reqs)), make([][]byte, len(c.Gates))
	for i, req := range reqs {
		names[i], tokens[i] = b.name(req.Key), req.Token
	}
	for i, gate := range c.Gates {
		closed[i] = b.name(gate)
	}
	type answer struct {
		fences  []*int64
		refused *int // counts from 1, the gates after the locks
		attempt      // of the lock that is refused
	}
	read := func(row pgx.Row) (a answer, err error) {
		var remaining *int64
		var label *string
		err = row.Scan(&a.fences, &a.refused, &remaining, &label)
		a.set(nil, remaining, label)
		return a, err
	}
	step := func(wait bool) (answer, error) {
		return request(ctx, b, read, b.sql.acquireSome,
			names, tokens, reqs[0].Label, microseconds(reqs[0].TTL), n, closed, wait, c.Spare)
	}
	a, err := step(n == len(reqs))
	if err == nil && a.fences == nil && a.refused == nil {
		a, err = step(true)
	}
	switch {
	case err != nil:
		for i, req := range reqs {
			b.undo(names[i], req.Token, "", req.TTL, err)
		}
		return nil, unavailable(err)
	case a.refused != nil:
		i := *a.refused - 1
		about := &locker.Error{Op: "trylock", Err: &a.held}
		if i < len(reqs) {
			about.Key = reqs[i].Key
		} else {
			about.Key = c.Gates[i-len(reqs)]
		}
		return nil, about
	case a.fences == nil:
		return nil, &locker.HeldError{}
	}
	grants := make([]*backend.Grant, len(reqs))
	for i, fence := range a.fences {
		if fence != nil {
			grants[i] = &backend.Grant{Fence: uint64(*fence)}
		}
	}
	return grants, nil
}

// RaiseFences implements [inspect.FenceRaiser], for the locks of the schema. It waits until the grants that are under
// way have ended.
func (b *store) RaiseFences(ctx context.Context, past uint64) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.calls.Done()
	read := func(row pgx.Row) (any, error) { return nil, row.Scan(nil) }
	_, err := request(ctx, b, read, b.sql.raiseTokens, int64(past))
	return unavailable(err)
}
