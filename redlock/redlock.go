// Package redlock keeps locks on N independent Redis masters. A lock is held when a majority of them has granted it, so
// it survives the failure of any minority.
//
//	l := redlock.New([]drivers.Driver{a, b, c, d, e})
//
// # What it promises
//
// A lock has at most one holder at a time under three conditions: no node that votes forgets a lock before its TTL has
// ended, clocks run at about the same speed, and a holder stops when its lease's Done is closed. Any minority of nodes
// may hang or be down. Locks are granted as before, and no operation waits for such a node for more than a fraction of
// a second.
//
// A node that forgets does more harm than a node that fails: a node that restarts empty and votes at once can let a
// second holder in. With [Guard], such a node does not vote until its locks have ended. Otherwise give nodes
// persistence (appendfsync always), or keep a restarted node away for as long as the longest TTL.
//
// Every lease has a fencing token. No two acquisitions of a key get the same token, and an acquisition that starts
// after another has returned gets a greater one. That holds for all clocks, pauses, delays, lost and repeated messages
// and expiry, even when two clients hold the lock, as long as no node forgets a write that it has acknowledged
// (appendfsync always, no eviction, no FLUSHALL). If nodes do forget, it holds as long as their clocks are right.
// docs/safety.md has the rules, their proof and the model that checks them.
//
// # What it does not promise
//
// A holder that was paused may not know that its lease has ended. A resource that does not check the token is not
// protected from it. Nodes must be standalone masters: a replica that takes over without the latest writes is a node
// that forgot. All clients must be given the same nodes.
package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/redis/settings"
)

// DefaultPrefix is put before every key unless [Prefix] says otherwise. Package single has the same default.
const DefaultPrefix = "lock:"

const (
	// DefaultBudget is how long one operation waits for a majority unless [Budget] says otherwise.
	DefaultBudget = time.Second
	// MinBudget is the shortest budget. A shorter one would be over before any answer has come.
	MinBudget = time.Millisecond
)

// Option changes what [New] builds.
type Option func(*options)

type options struct {
	prefix  string
	names   []string
	timeout time.Duration
	budget  time.Duration
	guard   time.Duration
	logger  *slog.Logger
}

// Prefix sets what is put before every key on every node. It may be empty. The default is [DefaultPrefix].
func Prefix(p string) Option { return func(o *options) { o.prefix = p } }

// Names sets the names of the nodes in errors, in the order of the drivers. Use their addresses, for example. Names
// must differ. The default is "node 1", "node 2", …
func Names(names ...string) Option { return func(o *options) { o.names = names } }

// Timeout bounds one exchange with one node, and so how long a connection to a node that hangs is kept. It does not
// bound operations, because they do not wait for a minority. Zero means the default, [drivers.DefaultTimeout].
func Timeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// Budget bounds how long one attempt, extension or release waits for a majority. An attempt waits for at most half of
// its TTL. Zero means [DefaultBudget]. It is at least [MinBudget].
func Budget(d time.Duration) Option { return func(o *options) { o.budget = d } }

// Logger sets the logger for warnings about the deployment. New warns of an even number of nodes, and of fewer than
// three. Later, a node that turns out to be the same server as another is logged once. nil means slog.Default.
//
// If l is not nil, New also looks at the settings and clocks of the nodes once, in the background, and logs a warning
// for each that weakens a promise: eviction, for example, or an append-only file that lacks the latest writes. Each
// warning names the nodes, the promise, and what to set. It is silent about what the nodes' users may not see; "locker
// doctor" is not.
func Logger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// New returns a Client that keeps its locks on the nodes behind ds. New does not wait for nodes, so they may be down,
// and without [Logger] and [Guard] it sends them nothing. A server with the addresses of two nodes has one vote,
// whether it had both from the start or an address has moved to it. Errors call the other node a [Duplicate]. Two
// databases of one server are not recognised, and would have two votes: give each node a server of its own. Closing
// the Client closes ds. If an option or the number of ds cannot be used, every call fails with an error that matches
// locker.ErrInvalid.
func New(ds []drivers.Driver, opts ...Option) *locker.Client {
	b, err := newBackend(ds, opts)
	if err != nil {
		return locker.NewClient(node.Unusable(fmt.Errorf("redlock: %w", err), ds...))
	}
	return locker.NewClient(b)
}

func newBackend(ds []drivers.Driver, opts []Option) (*majority, error) {
	o := options{prefix: DefaultPrefix, budget: DefaultBudget}
	for _, opt := range opts {
		opt(&o)
	}
	switch {
	case o.budget == 0:
		o.budget = DefaultBudget
	case o.budget < MinBudget:
		return nil, fmt.Errorf("%w: a budget of %v is below the minimum of %v", locker.ErrInvalid, o.budget, MinBudget)
	}
	looker := o.logger
	if o.guard != 0 && o.guard < locker.MinTTL {
		return nil, fmt.Errorf("%w: a guard of %v is below the minimum of %v",
			locker.ErrInvalid, o.guard, locker.MinTTL)
	}
	if o.logger == nil {
		o.logger = slog.Default()
	}
	names, err := o.nodeNames(len(ds))
	if err != nil {
		return nil, err
	}
	b := &majority{names: names, budget: o.budget, logger: o.logger, closing: make(chan struct{})}
	var servers []settings.Server
	for i, d := range ds {
		b.nodes = append(b.nodes, node.New(d, node.Options{
			Name: names[i], Prefix: o.prefix, Timeout: o.timeout, Number: i + 1, Names: names, Guard: o.guard,
		}))
		servers = append(servers, settings.Server{Name: names[i], Driver: d})
	}
	b.audit = settings.Begin(looker, o.timeout, settings.Use{Redlock: true, Guard: o.guard}, servers...)
	switch n := len(ds); {
	case n < 3:
		o.logger.Warn("redlock: fewer than three nodes survive no failure", "nodes", n)
	case n%2 == 0:
		o.logger.Warn("redlock: an even number of nodes survives no more failures than one node fewer", "nodes", n)
	}
	return b, nil
}

func (o *options) nodeNames(n int) ([]string, error) {
	switch {
	case n == 0:
		return nil, fmt.Errorf("%w: no nodes were given", locker.ErrInvalid)
	case n > maxNodes:
		return nil, fmt.Errorf("%w: %d nodes were given, %d are allowed", locker.ErrInvalid, n, maxNodes)
	case o.names == nil:
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("node %d", i+1)
		}
		return names, nil
	case len(o.names) != n:
		return nil, fmt.Errorf("%w: %d names were given for %d nodes", locker.ErrInvalid, len(o.names), n)
	}
	seen := map[string]bool{}
	for _, name := range o.names {
		if seen[name] {
			return nil, fmt.Errorf("%w: two nodes are called %q: the same server must not be given twice",
				locker.ErrInvalid, name)
		}
		seen[name] = true
	}
	return slices.Clone(o.names), nil
}

// Guard makes a node that may have forgotten locks rest: it grants no lock until all locks that it may have forgotten
// have ended. That is so after a restart, FLUSHALL and a failover, whatever the node has kept. So a node that restarts
// empty cannot let a second holder in. A node that rests goes on to extend and to release. It does not count for a
// majority when a lock is acquired. Errors say how long it rests; see locker.GracePeriodError.
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
