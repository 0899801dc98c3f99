// Package redigodriver is a driver for the client github.com/gomodule/redigo. Importing it registers the driver
// "redigo".
package redigodriver

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
	// bounded says that getting a connection from the pool observes the deadline of a context.
	bounded bool
	owned   bool
	// untimed says that the pool's connections do not support time-outs for single commands.
	untimed atomic.Bool
	// departures counts the calls of leave.
	departures atomic.Int64
	lifecycle  drivers.Lifecycle
}

// New returns a driver that uses pool. The pool belongs to the caller, and Close leaves it open.
//
// All connections of the pool must be to one server. redigo supports neither clusters nor sentinels: a node of a
// cluster answers MOVED to commands for keys of other nodes.
//
// Set MaxIdle of the pool. With 0, redigo's default, each call opens a new connection. A call that is cancelled while
// it waits for the answer closes its connection. If the server answers as a replica does, the driver closes the idle
// connections of the pool. Subscriptions open their own connections, which the pool does not count.
func New(pool *redis.Pool) drivers.Driver { return &driver{pool: pool} }

func open(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
	options := []redis.DialOption{
		redis.DialContextFunc(func(ctx context.Context, _, _ string) (net.Conn, error) { return cfg.Dial(ctx) }),
		redis.DialReadTimeout(cfg.Timeout), redis.DialWriteTimeout(cfg.Timeout),
		redis.DialDatabase(cfg.DB),
	}
	dial := func(ctx context.Context, user, password string) (redis.Conn, error) {
		return redis.DialContext(ctx, cfg.Network, cfg.Addr,
			append(options[:len(options):len(options)], redis.DialUsername(user), redis.DialPassword(password))...)
	}
	return &driver{bounded: true, owned: true, pool: &redis.Pool{
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			user, password, err := cfg.Login(ctx)
			if err != nil {
				return nil, err
			}
			if user != "" || password == "" {
				return dial(ctx, user, password)
			}
			// Send the name of the default user, as the other clients do. A server without a password then accepts
			// every password, and without the name it would refuse it. A server without users, such as a proxy, refuses
			// the name.
			conn, err := dial(ctx, "default", password)
			var refusal redis.Error
			if errors.As(err, &refusal) && drivers.ServerError(refusal).Code() == "ERR" {
				conn, err = dial(ctx, "", password)
			}
			return conn, err
		},
		// A connection may have died while it was idle. A PING finds that out. The caller's command could not be
		// repeated.
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

// Direct implements [drivers.Direct].
func (d *driver) Direct() bool {
	return !d.untimed.Load() && (d.bounded && d.pool.IdleCount() > 0 || d.idle())
}

func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := d.lifecycle.Enter(ctx); err != nil {
		return nil, err
	}
	here := d.bounded || ctx.Done() == nil && d.idle()
	if end, ok := ctx.Deadline(); ok && ctx.Done() == nil && !(here && d.timesOut(cmds)) {
		// A time-out of the connection would bound only reading, and writing that much may block as well.
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
		cmds[i] = slices.Clone(cmds[i]) // an abandoned call goes on using them
	}
	return drivers.Await(ctx, func() ([]drivers.Reply, error) { return d.exchange(ctx, cmds) })
}

// timesOut reports whether a time-out of the connection bounds the exchange, so that its context need not be watched.
func (d *driver) timesOut(cmds []drivers.Command) bool {
	return len(cmds) == 1 && size(cmds[0]) <= maxDirect && !d.untimed.Load()
}

// errUntimed is redigo's error for a connection that does not support time-outs for single commands, such as a wrapper
// that measures the calls of another connection.
var _, errUntimed = redis.DoWithTimeout(struct{ redis.Conn }{}, time.Second, "PING")

// maxDirect is how many bytes can be written to a socket without blocking, even if the server does not read.
const maxDirect = 4 << 10

func size(cmd drivers.Command) (n int) {
	for _, word := range cmd {
		n += len(word)
	}
	return n
}

// idle reports whether the pool can probably provide a connection without contacting the server. Contacting it could
// take longer than the context allows: a pool's Dial has no context, redigo's TLS handshake ignores it, and a
// TestOnBorrow waits for the answer without a limit.
func (d *driver) idle() bool {
	return d.pool.TestOnBorrow == nil && d.pool.TestOnBorrowContext == nil && d.pool.IdleCount() > 0
}

func (d *driver) exchange(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
	departures := d.departures.Load()
	conn, err := d.pool.GetContext(ctx)
	if err == nil {
		defer func() { _ = conn.Close() }()
		// A call that was abandoned while it waited for the connection must not send anything.
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
		if d.lifecycle.Stale(values) {
			d.leave(ctx)
		}
		if d.departures.Load() != departures { // conn was not idle
			drop(conn)
		}
		return values, nil
	case ctx.Err() != nil:
		return nil, ctx.Err() // the connection's own error only says that it was closed
	}
	return nil, err
}

// leave closes the idle connections of the pool, because they are stale. Calls that are using a connection close it
// when they have its replies. The pool itself drops a connection only if it is broken.
func (d *driver) leave(ctx context.Context) {
	d.departures.Add(1)
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	for range d.pool.IdleCount() {
		idle, err := d.pool.GetContext(ctx)
		if err != nil {
			return
		}
		drop(idle)
		_ = idle.Close()
	}
}

// leaveTimeout bounds leave. It matters if the pool tests connections that are hung.
const leaveTimeout = time.Second

// drop breaks a connection that waits for no reply, so that the pool drops it.
func drop(conn redis.Conn) {
	if _, _ = redis.ReceiveContext(conn, expired); conn.Err() == nil { // a wrapper that knows no contexts
		_, _ = conn.Do("QUIT")
		_, _ = conn.Receive()
	}
}

// one is roundTrip for one command. The connection enforces the limit.
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
	// Do without a command flushes, and returns all outstanding replies. Error replies are among the values.
	return redis.Values(conn.Do(""))
}

// breakOff closes the network connection under conn if ctx ends before stop is called. That bounds writing and reading,
// whatever the time-outs of the pool's connections. It needs a goroutine only when ctx ends.
func breakOff(ctx context.Context, conn redis.Conn) (stop func()) {
	broken := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		defer close(broken)
		// A pool's connection has no method that closes the network connection while it is in use. Receiving with an
		// expired context does that, while it holds the connection's own mutex.
		_, _ = redis.ReceiveContext(conn, expired)
	})
	return func() {
		if !forget() {
			<-broken
		}
	}
}

var expired, _ = context.WithDeadline(context.Background(), time.Unix(0, 0))

// normal converts byte slices to strings and redigo's errors to ServerErrors.
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
	if d.lifecycle.Shut() && d.owned {
		return d.pool.Close()
	}
	return nil
}
