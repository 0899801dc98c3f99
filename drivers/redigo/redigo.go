// Package redigo carries commands by github.com/gomodule/redigo. Importing it registers the driver "redigo".
package redigo

import (
	"context"
	"errors"
	"net"
	"slices"
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
	gate    drivers.Gate
}

// New makes a driver of pool, which stays the caller's: Close leaves it open. Its connections must speak to one server,
// redigo knows neither clusters nor sentinels: of a cluster's node it gets MOVED for what other nodes have. Give the pool a
// MaxIdle: with 0, redigo's default, each call makes a connection of its own. A call that is cancelled on the way closes its
// connection. Subscriptions dial for themselves and are not counted by the pool.
func New(pool *redis.Pool) drivers.Driver { return &driver{pool: pool} }

func open(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
	options := []redis.DialOption{
		redis.DialContextFunc(func(ctx context.Context, _, _ string) (net.Conn, error) { return cfg.Dial(ctx) }),
		redis.DialReadTimeout(cfg.Timeout), redis.DialWriteTimeout(cfg.Timeout),
		redis.DialPassword(cfg.Password), redis.DialDatabase(cfg.DB),
	}
	dial := func(ctx context.Context, user string) (redis.Conn, error) {
		return redis.DialContext(ctx, cfg.Network, cfg.Addr, append(options[:len(options):len(options)], redis.DialUsername(user))...)
	}
	return &driver{bounded: true, owned: true, pool: &redis.Pool{
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			if cfg.Username != "" || cfg.Password == "" {
				return dial(ctx, cfg.Username)
			}
			// With the user's name, as the other clients do it. A server that has no password accepts any one then, and refuses it
			// without the name. One that knows no users, such as a proxy, refuses the name.
			conn, err := dial(ctx, "default")
			var refusal redis.Error
			if errors.As(err, &refusal) && drivers.ServerError(refusal).Code() == "ERR" {
				conn, err = dial(ctx, "")
			}
			return conn, err
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

func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := d.gate.Enter(ctx); err != nil {
		return nil, err
	}
	here := d.bounded || ctx.Done() == nil && d.idle()
	if end, ok := ctx.Deadline(); ok && ctx.Done() == nil && !(here && d.timesOut(cmds)) {
		// What bounds reading is a deadline of the connection; writing that much may block as well.
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	if here {
		replies, err := d.exchange(ctx, cmds)
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
	return drivers.Await(ctx, func() ([]drivers.Reply, error) { return d.exchange(ctx, cmds) })
}

// timesOut reports whether a time-out of the connection bounds the exchange, so that nobody has to watch its context.
func (d *driver) timesOut(cmds []drivers.Command) bool {
	return len(cmds) == 1 && size(cmds[0]) <= maxDirect && !d.untimed.Load()
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

func (d *driver) exchange(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
	conn, err := d.pool.GetContext(ctx)
	if err == nil {
		defer func() { _ = conn.Close() }()
		// An abandoned call that gets its connection now must not send any more.
		err = ctx.Err()
	}
	if err != nil {
		var refusal redis.Error
		if errors.As(err, &refusal) {
			return drivers.Refused(drivers.ServerError(refusal), len(cmds)), nil
		}
		return nil, drivers.NotSent(err)
	}
	var values []any
	if end, ok := ctx.Deadline(); ok && ctx.Done() == nil {
		values, err = one(conn, cmds[0], time.Until(end))
	} else {
		stop := breakOff(ctx, conn)
		values, err = roundTrip(conn, cmds)
		stop()
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
	reply, err := redis.DoWithTimeout(conn, max(limit, 1), cmd[0], args(cmd)...)
	if refusal, ok := err.(redis.Error); ok { //nolint:errorlint // redigo does not wrap it
		reply, err = refusal, nil
	}
	if err != nil {
		return nil, err
	}
	return []any{reply}, nil
}

// args returns the words of cmd after its name.
func args(cmd drivers.Command) []any {
	args := make([]any, len(cmd)-1)
	for i, arg := range cmd[1:] {
		args[i] = arg
	}
	return args
}

func roundTrip(conn redis.Conn, cmds []drivers.Command) ([]any, error) {
	for _, cmd := range cmds {
		if err := conn.Send(cmd[0], args(cmd)...); err != nil {
			return nil, err
		}
	}
	// Without a command Do flushes and receives what is outstanding, error replies as values in their places.
	return redis.Values(conn.Do(""))
}

// breakOff closes the network connection under conn when ctx ends before stop is called. That bounds writing as well as
// reading, whatever time-outs the pool's connections have or lack, and costs no goroutine before it is needed.
func breakOff(ctx context.Context, conn redis.Conn) (stop func()) {
	broken := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		defer close(broken)
		// A pool's connection has no method that closes the network connection while it is in use, but receiving with an
		// expired context does just that, under the connection's own lock.
		_, _ = redis.ReceiveContext(conn, expired)
	})
	return func() {
		if !forget() {
			<-broken
		}
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
