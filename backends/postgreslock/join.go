package postgreslock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// maxSenders is how many statements of one kind are in flight before further changes are gathered. It is more than
	// one, so that a few changes at the same time do not wait for each other.
	maxSenders = 4

	// stalled is how long a change waits until it gets another sender: the statements in flight may wait for other
	// transactions, and their connections may be silent. No connection is given up earlier.
	stalled = 50 * time.Millisecond
)

// change is a request to extend or to release a lock, and its outcome.
type change struct {
	ctx   context.Context // of the caller
	name  []byte
	token string
	ttl   int64 // of an extension, in µs
	asks  bool  // an extension asks whether somebody waits

	since    time.Time     // when it was added
	answered chan struct{} // closed when the following are valid
	owner    *string       // what the server says about the owner; nil without an error: the change was passed over
	err      error
}

// joiner sends changes of one kind. A change that finds a sender free goes out at once. Those that come while all
// senders are busy are gathered, and the first sender that becomes free sends them as one statement. So the locks that
// somebody releases or renews at the same moment take a few transactions.
//
// A statement for several changes does not wait for other transactions. It passes over locks that these are changing,
// and the callers of these changes send them alone. So no caller waits for the lock of another one, and no two
// statements wait for each other. If the server refuses the statement, or it was not sent, each of its changes is sent
// alone, too.
//
// A statement has changes whose limits are about the same, so that a lock with a short TTL costs no other one its
// extension.
type joiner struct {
	tasks *sync.WaitGroup
	// connect takes a connection within limit. The function that it returns is called once, gives the connection back, and
	// sends the changes, if there are any.
	connect func(limit time.Duration) (send func(all []*change) ([]*string, error), err error)
	timeout time.Duration
	most    int // connections that there can be
	alone   func(ctx context.Context, c *change) (owner string, err error)
	crowded func(err error) error // see store.crowded

	mu         sync.Mutex
	waiting    []*change // that no sender has taken
	senders    int
	connecting int       // senders that have not taken their changes yet
	started    time.Time // when the last sender was started
}

// do makes a change, and returns what the server says about the owner. It returns when the context of c ends, if not
// before. A change that was sent then goes on in the background. Call it in a call of the backend, or in a chore.
func (j *joiner) do(c *change) (owner string, err error) {
	j.add(c)
	late := time.NewTicker(stalled)
	defer late.Stop()
	for {
		select {
		case <-c.answered:
			switch {
			case c.err != nil:
				return "", c.err
			case c.owner == nil:
				return j.alone(c.ctx, c)
			}
			return *c.owner, nil
		case <-late.C:
			j.hurry(c)
		case <-c.ctx.Done():
			if j.withdraw(c) {
				return "", notSent{j.crowded(c.ctx.Err())}
			}
			return "", c.ctx.Err()
		}
	}
}

func (j *joiner) add(c *change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.since, c.answered = time.Now(), make(chan struct{})
	j.waiting = append(j.waiting, c)
	if j.senders < maxSenders {
		j.start(c)
	}
}

// start starts a sender, which sends c first unless another one does. Call with mu held.
func (j *joiner) start(c *change) {
	j.senders++
	j.connecting++
	j.started = time.Now()
	j.tasks.Go(func() { j.run(limitOf(j.timeout, c)) })
}

// hurry starts another sender if nobody is about to take c, or if those who are wait for their connections: the pool
// tries one that was idle before it hands it out, and if that one is silent, for as long as a request may take.
func (j *joiner) hurry(c *change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	stuck := j.connecting < j.most && time.Since(j.started) >= stalled
	if (j.connecting == 0 || stuck) && slices.Contains(j.waiting, c) {
		j.start(c)
	}
}

// withdraw takes c back, and reports whether no sender had it.
func (j *joiner) withdraw(c *change) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.Index(j.waiting, c)
	if i >= 0 {
		j.waiting = slices.Delete(j.waiting, i, i+1)
	}
	return i >= 0
}

// run is a sender of changes with about this limit, and then of the others. It ends when nothing waits.
func (j *joiner) run(limit time.Duration) {
	for more := true; more; limit, more = j.more() {
		began := time.Now()
		send, err := j.connect(limit)
		if err != nil {
			settle(j.take(func(c *change) bool {
				return !c.since.After(began) && limitOf(j.timeout, c) <= 2*limit
			}), nil, notSent{err})
			continue
		}
		n := 0
		all := j.take(func(c *change) bool {
			own := limitOf(j.timeout, c)
			is := n < maxStep && own <= 2*limit && limit <= 2*own
			if is {
				n++
			}
			return is
		})
		owners, err := send(all)
		if len(all) > 1 && err != nil && !unknown(err) {
			owners, err = make([]*string, len(all)), nil // perhaps it was about one of them
		}
		settle(all, owners, err)
	}
}

// limitOf returns how long a statement for changes may take. If the answer to an extension has not come when a third of
// its TTL is over, the connection is given up: it may be silent for good, as behind a router that has forgotten it, and
// another one may still extend the lock.
func limitOf(timeout time.Duration, all ...*change) time.Duration {
	for _, c := range all {
		if third := time.Duration(c.ttl) * time.Microsecond / 3; third > 0 {
			timeout = min(timeout, max(third, stalled))
		}
	}
	return timeout
}

// take takes the changes that are to be sent, or that have waited for a connection for too long.
func (j *joiner) take(due func(c *change) bool) (all []*change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.connecting--
	j.waiting = slices.DeleteFunc(j.waiting, func(c *change) bool {
		is := due(c)
		if is {
			all = append(all, c)
		}
		return is
	})
	return all
}

// more reports whether the sender has to go on, and with which limit.
func (j *joiner) more() (limit time.Duration, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.waiting) == 0 {
		j.senders--
		return 0, false
	}
	j.connecting++
	return limitOf(j.timeout, j.waiting[0]), true
}

// settle tells callers what the server has answered.
func settle(all []*change, owners []*string, err error) {
	for i, c := range all {
		if c.err = err; err == nil {
			c.owner = owners[i]
		}
		close(c.answered)
	}
}

// joins returns what sends changes of one kind. one is the statement for one of them, with the arguments args, and some
// is that for several, whose arguments are columns.
func (b *store) joins(one, some string, args func(c *change) []any, columns func(all []*change) []any) *joiner {
	return &joiner{
		tasks:   &b.tasks,
		timeout: b.timeout,
		connect: func(limit time.Duration) (func(all []*change) ([]*string, error), error) {
			if b.invalid != nil {
				return nil, b.invalid
			}
			conn, err := b.connection(context.Background(), limit)
			return func(all []*change) ([]*string, error) { return b.send(conn, all, one, some, args, columns) }, err
		},
		most: int(b.pool.Config().MaxConns),
		alone: func(ctx context.Context, c *change) (string, error) {
			return request(ctx, b, text, one, args(c)...)
		},
		crowded: b.crowded,
	}
}

// send sends changes over conn, which it gives back to the pool.
func (b *store) send(
	conn *pgxpool.Conn, all []*change, one, some string, args func(c *change) []any, columns func(all []*change) []any,
) ([]*string, error) {
	switch len(all) {
	case 0:
		conn.Release()
		return nil, nil
	case 1:
		owner, err := exchange(all[0].ctx, b, limitOf(b.timeout, all...), conn, text, one, args(all[0])...)
		return []*string{&owner}, err
	}
	read := func(row pgx.Row) (owners []*string, err error) {
		err = row.Scan(&owners)
		return owners, err
	}
	return exchange(all[0].ctx, b, limitOf(b.timeout, all...), conn, read, some, columns(all)...)
}

// joinsExtensions returns what sends extensions.
func (b *store) joinsExtensions() *joiner {
	return b.joins(b.sql.extend, b.sql.extendSome,
		func(c *change) []any { return []any{c.name, c.token, c.ttl, c.asks} },
		func(all []*change) []any {
			ttls, asks := make([]int64, len(all)), make([]bool, len(all))
			for i, c := range all {
				ttls[i], asks[i] = c.ttl, c.asks
			}
			return append(columnsOf(all), ttls, asks)
		})
}

// joinsReleases returns what sends releases that do not keep the lock.
func (b *store) joinsReleases() *joiner {
	return b.joins(b.sql.release, b.sql.releaseSome,
		func(c *change) []any { return []any{c.name, c.token, int64(0)} }, columnsOf)
}

// columnsOf returns the names and the tokens of changes.
func columnsOf(all []*change) []any {
	names, tokens := make([][]byte, len(all)), make([]string, len(all))
	for i, c := range all {
		names[i], tokens[i] = c.name, c.token
	}
	return []any{names, tokens}
}
