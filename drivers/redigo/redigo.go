// Package redigo carries commands by github.com/gomodule/redigo. Importing it registers the driver "redigo".
package redigo

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
)

func init() { drivers.Register("redigo", open) }

type driver struct {
	pool *redis.Pool
	// bounded says that getting a connection from the pool keeps to the deadline of a context.
	bounded bool
	owned   bool
	// untimed says that the pool's connections know no time-outs for single commands.
	untimed atomic.Bool
	// kind says whether the pool's connections can be broken off.
	kind      atomic.Int32
	borrowers *borrowers   // nil: whoever waits for the pool can leave
	used      atomic.Int64 // when a connection was last given back, if the pool has an IdleTimeout; ns since 1970
	breakers  sync.Pool
	gate      drivers.Gate
}

// New makes a driver of pool, which stays the caller's: Close leaves it open. Its connections must speak to one server,
// redigo knows neither clusters nor sentinels: of a cluster's node it gets MOVED for what other nodes have. Give the pool a
// MaxIdle: with 0, redigo's default, each call makes a connection of its own. A call that is cancelled on the way closes its
// connection. Subscriptions dial for themselves and are not counted by the pool.
func New(pool *redis.Pool) drivers.Driver { return &driver{pool: pool, borrowers: newBorrowers()} }

func open(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
	options := []redis.DialOption{
		redis.DialContextFunc(func(ctx context.Context, _, _ string) (net.Conn, error) { return cfg.Dial(ctx) }),
		redis.DialReadTimeout(cfg.Timeout), redis.DialWriteTimeout(cfg.Timeout),
		redis.DialUsername(cfg.Username), redis.DialPassword(cfg.Password), redis.DialDatabase(cfg.DB),
	}
	return &driver{bounded: true, owned: true, pool: &redis.Pool{
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, cfg.Network, cfg.Addr, options...)
		},
		// A connection that died while nobody used it is found out by a question that may be repeated, not by the
		// caller's command, which may not.
		TestOnBorrowContext: func(ctx context.Context, conn redis.Conn, lastUsed time.Time) error {
			if time.Since(lastUsed) < time.Second {
				return nil
			}
			_, err := redis.DoContext(conn, ctx, "PING")
			return err
		},
		MaxIdle: 64, MaxActive: 64, Wait: true, IdleTimeout: 5 * time.Minute,
	}}, nil
}

// Direct implements drivers.Direct.
func (d *driver) Direct() bool {
	return !d.untimed.Load() && (d.bounded && d.pool.IdleCount() > 0 || d.idle())
}

// Interruptible implements drivers.Interruptible.
func (d *driver) Interruptible() bool {
	return d.kind.Load() == breakable && (d.bounded || d.lasting()) && d.Direct()
}

func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := d.gate.Enter(ctx); err != nil {
		return nil, err
	}
	reserved := !d.bounded && d.idle() && (ctx.Done() == nil || d.lasting()) && d.borrowers.reserve(d.pool)
	here := d.bounded || reserved
	if end, quiet := drivers.QuietDeadline(ctx); quiet && (!here || len(cmds) > 1 || size(cmds[0]) > maxDirect || d.untimed.Load()) {
		// What bounds reading is a deadline of the connection; writing that much may block as well.
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	if here {
		replies, err := d.exchange(ctx, cmds, reserved)
		if errors.Is(err, errUntimed) { // nothing was sent
			d.untimed.Store(true)
			return d.Do(ctx, cmds...)
		}
		return replies, err
	}
	cmds = slices.Clone(cmds)
	for i := range cmds {
		cmds[i] = slices.Clone(cmds[i]) // an abandoned call goes on with them
	}
	return drivers.Await(ctx, func() ([]drivers.Reply, error) { return d.exchange(ctx, cmds, false) })
}

// errUntimed is redigo's word for a connection of somebody else's making (around one of redigo's, to measure it, say) that knows
// no time-outs for single commands.
var _, errUntimed = redis.DoWithTimeout(struct{ redis.Conn }{}, time.Second, "PING")

// maxDirect is what a socket takes at once, whether or not the server reads.
const maxDirect = 4 << 10

func size(cmd drivers.Command) (n int) {
	for _, word := range cmd {
		n += len(word)
	}
	return n
}

// idle reports whether a connection can probably be had without asking the server, which is what can take longer than
// the context allows: a pool's Dial knows no context, redigo's TLS handshake ignores it, and a TestOnBorrow waits for an
// answer without a limit.
func (d *driver) idle() bool {
	return d.pool.TestOnBorrow == nil && d.pool.TestOnBorrowContext == nil && d.pool.IdleCount() > 0
}

// lasting reports whether what is idle in the pool is good, as far as can be known: what is too old the pool throws away when it
// is asked for one, and then dials. It does not say how old what it has is, but gives the one that was used last.
func (d *driver) lasting() bool {
	idle := d.pool.IdleTimeout
	return d.pool.MaxConnLifetime <= 0 && (idle <= 0 || time.Now().UnixNano()-d.used.Load() < int64(idle)/2)
}

func (d *driver) borrow(ctx context.Context, reserved bool) (redis.Conn, error) {
	if d.borrowers == nil {
		return d.pool.GetContext(ctx)
	}
	return d.borrowers.get(ctx, d.pool, reserved)
}

func (d *driver) exchange(ctx context.Context, cmds []drivers.Command, reserved bool) ([]drivers.Reply, error) {
	conn, err := d.borrow(ctx, reserved)
	if err == nil {
		defer func() {
			_ = conn.Close()
			if d.pool.IdleTimeout > 0 {
				d.used.Store(time.Now().UnixNano())
			}
		}()
		// An abandoned call that gets its connection now must not send any more.
		err = ctx.Err()
	}
	if err != nil {
		if refusal, ok := errors.AsType[redis.Error](err); ok {
			return drivers.Refused(drivers.ServerError(refusal), len(cmds)), nil
		}
		return nil, drivers.NotSent(err)
	}
	if d.kind.Load() == unknown {
		d.probe(conn)
	}
	var off *breaker
	if ctx.Done() != nil {
		off = d.breakOff(ctx, conn)
	}
	var values []any
	if end, quiet := drivers.QuietDeadline(ctx); quiet && len(cmds) == 1 {
		values, err = one(conn, cmds[0], time.Until(end))
	} else {
		values, err = roundTrip(conn, cmds)
	}
	if off != nil {
		d.done(off)
	}
	switch {
	case err == nil:
		for i := range values {
			values[i] = normal(values[i])
		}
		return values, nil
	case ctx.Err() != nil:
		return nil, ctx.Err() // the connection was broken off, and says so in terms that help nobody
	}
	return nil, err
}

// one is roundTrip for one command, within a time that the connection sees to.
func one(conn redis.Conn, cmd drivers.Command, limit time.Duration) ([]any, error) {
	s := spare.Get().(*[]any)
	args := drivers.Words((*s)[:0], cmd[1:])
	reply, err := redis.DoWithTimeout(conn, max(limit, 1), cmd[0], args...)
	clear(args)
	*s = args
	spare.Put(s)
	if refusal, ok := err.(redis.Error); ok { //nolint:errorlint // redigo does not wrap it
		reply, err = refusal, nil
	}
	if err != nil {
		return nil, err
	}
	return []any{reply}, nil
}

// spare has room for arguments. The client has written them when it returns.
var spare = sync.Pool{New: func() any { return new([]any) }}

func roundTrip(conn redis.Conn, cmds []drivers.Command) ([]any, error) {
	for _, cmd := range cmds {
		args := make([]any, len(cmd)-1)
		for i, arg := range cmd[1:] {
			args[i] = arg
		}
		if err := conn.Send(cmd[0], args...); err != nil {
			return nil, err
		}
	}
	// Without a command Do flushes and receives what is outstanding, error replies as values in their places.
	return redis.Values(conn.Do(""))
}

// breaker closes the network connection under one that is in use. That bounds writing as well as reading, whatever time-outs
// the pool's connections have or lack, and costs no goroutine before it is needed.
type breaker struct {
	conn   redis.Conn
	run    func() // breakOff
	stop   func() bool
	broken chan struct{}
}

func (b *breaker) breakOff() {
	defer close(b.broken)
	// A pool's connection has no method that closes the network connection while it is in use, but receiving with an
	// expired context does just that, under the connection's own lock.
	_, _ = redis.ReceiveContext(b.conn, expired)
}

// breakOff breaks conn off when ctx ends before done is called. Breakers are used again, with their functions, which a driver has
// for itself: channels must not leave a bubble of virtual time.
func (d *driver) breakOff(ctx context.Context, conn redis.Conn) *breaker {
	b, _ := d.breakers.Get().(*breaker)
	if b == nil {
		b = &breaker{broken: make(chan struct{})}
		b.run = b.breakOff
	}
	b.conn = conn
	b.stop = drivers.OnLeave(ctx, b.run)
	return b
}

func (d *driver) done(b *breaker) {
	if !b.stop() {
		<-b.broken
		return
	}
	b.conn, b.stop = nil, nil
	d.breakers.Put(b)
}

// Kinds of connections.
const (
	unknown = iota
	breakable
	unbreakable
)

// errUnbreakable is redigo's word for a connection of somebody else's making that knows no contexts, and so cannot be broken off.
var _, errUnbreakable = redis.DoContext(struct{ redis.Conn }{}, expired, "")

// probe finds out of what kind the pool's connections are, by one that has nothing to do.
func (d *driver) probe(conn redis.Conn) {
	switch _, err := redis.DoContext(conn, context.Background(), ""); {
	case err == nil:
		d.kind.Store(breakable)
	case errors.Is(err, errUnbreakable):
		d.kind.Store(unbreakable)
	}
}

var expired, _ = context.WithDeadline(context.Background(), time.Unix(0, 0))

// normal turns byte slices into strings and redigo's errors into ours.
func normal(value any) drivers.Reply {
	switch value := value.(type) {
	case []byte:
		return string(value)
	case redis.Error:
		return drivers.ServerError(value)
	case []any:
		for i := range value {
			value[i] = normal(value[i])
		}
	}
	return value
}

func (d *driver) Close() error {
	if d.gate.Shut() && d.owned {
		return d.pool.Close()
	}
	return nil
}
