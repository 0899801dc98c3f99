// Package goredisdriver is a driver for the client github.com/redis/go-redis/v9. Importing it registers the driver
// "goredis".
package goredisdriver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker/drivers"
)

type driver struct {
	client redis.UniversalClient
	// bounded says that the client observes the deadline of a context.
	bounded   bool
	owned     bool
	dialer    *drivers.Dialer // of an owned client of one server; else nil
	lifecycle drivers.Lifecycle
	// live says that the last exchange succeeded, so that there are connections.
	live atomic.Bool
	// follows says that the client follows redirections and sends a batch in several parts.
	follows bool
	cluster *redis.ClusterClient // the client, if it is a ClusterClient; else nil
	// reloaded is when the driver last made the client look up the masters of the cluster.
	reloading sync.Mutex
	reloaded  time.Time
}

// command is a command that go-redis never retries, whatever the configuration of the client.
type command struct{ *redis.Cmd }

func (command) NoRetry() bool { return true }

// Direct implements [drivers.Direct]. If all connections are in use, a call may wait for the client's PoolTimeout. A
// client of a cluster is never direct. If a master is dead, it repeats a command after pauses, and only a Done channel
// ends these. The exchanges with other masters succeed meanwhile, so live does not tell.
func (d *driver) Direct() bool { return d.bounded && !d.follows && d.live.Load() }

func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := d.lifecycle.Enter(ctx); err != nil {
		return nil, err
	}
	switch {
	case d.bounded && len(cmds) == 1:
		return d.one(ctx, cmds[0])
	case d.bounded:
		return d.exchange(ctx, batchOf(ctx, cmds))
	}
	batch := batchOf(ctx, cmds)
	return drivers.Await(ctx, func() ([]drivers.Reply, error) { return d.exchange(ctx, batch) })
}

func (d *driver) one(ctx context.Context, cmd drivers.Command) ([]drivers.Reply, error) {
	c := commandOf(ctx, cmd)
	reply, err := result(c, d.client.Process(ctx, c))
	d.note(err != nil, reply)
	d.heed(ctx, reply)
	if err != nil {
		if notSent(err) {
			err = drivers.NotSent(err)
		}
		return nil, err
	}
	return []drivers.Reply{reply}, nil
}

func commandOf(ctx context.Context, cmd drivers.Command) command {
	args := make([]any, len(cmd))
	for i, arg := range cmd {
		args[i] = arg
	}
	return command{redis.NewCmd(ctx, args...)}
}

func batchOf(ctx context.Context, cmds []drivers.Command) []command {
	batch := make([]command, len(cmds))
	for i, cmd := range cmds {
		batch[i] = commandOf(ctx, cmd)
	}
	return batch
}

func (d *driver) exchange(ctx context.Context, batch []command) ([]drivers.Reply, error) {
	var err error
	if len(batch) == 1 {
		err = d.client.Process(ctx, batch[0])
	} else {
		pipe := d.client.Pipeline()
		for _, cmd := range batch {
			_ = pipe.Process(ctx, cmd)
		}
		_, err = pipe.Exec(ctx)
	}
	replies := make([]drivers.Reply, len(batch))
	var failures []error
	unsent := notSent
	// In a batch, a cluster client keeps the first error of each command. It may have sent the command again after
	// that, to the node that it was redirected to, and that may have failed in another way. The first error therefore
	// does not prove that the command was not executed.
	stale := d.follows && len(batch) > 1
	if stale {
		unsent = func(error) bool { return false }
	}
	for i, cmd := range batch {
		reply, failure := result(cmd, err)
		refusal, refused := reply.(drivers.ServerError)
		if refused && stale && (refusal.Code() == "MOVED" || refusal.Code() == "ASK") {
			// A new error, so that errors.As does not find a refusal.
			failure = errors.New("redirected, but the other node has not answered: " + refusal.Error())
		}
		if failure != nil {
			failures = append(failures, failure)
		}
		replies[i] = reply
	}
	d.note(len(failures) > 0, replies...)
	d.heed(ctx, replies...)
	return drivers.Outcome(replies, failures, unsent)
}

// result returns the reply to cmd, or an error if there is none. err is the error of the whole exchange.
func result(cmd command, err error) (drivers.Reply, error) {
	value, cmdErr := cmd.Result()
	if value == nil && cmdErr == nil {
		cmdErr = err // if the server refused the connection of a pipeline, its commands have no error
	}
	if cmdErr == nil {
		return normal(value), nil
	}
	if errors.Is(cmdErr, redis.Nil) {
		return nil, nil // checked first, because redis.Nil is also a redis.Error
	}
	var refusal redis.Error
	if errors.As(cmdErr, &refusal) {
		return drivers.ServerError(refusal.Error()), nil
	}
	return nil, cmdErr
}

func notSent(err error) bool {
	return drivers.DialFailed(err) || errors.Is(err, redis.ErrClosed) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

func normal(value any) drivers.Reply {
	if refusal, ok := value.(redis.Error); ok {
		return drivers.ServerError(refusal.Error())
	}
	elements, _ := value.([]any)
	for i := range elements {
		elements[i] = normal(elements[i])
	}
	return value
}

// heed leaves the connections if they are stale. A server of a cluster redirects instead.
//
// The client itself leaves a connection when the first reply of a batch is READONLY. Of the other replies, and of other
// codes, it takes no notice. QUIT makes the server close the connection that was used last, and PING makes the client
// see that.
func (d *driver) heed(ctx context.Context, replies ...drivers.Reply) {
	switch {
	case d.follows || !d.lifecycle.Stale(replies):
	case d.dialer != nil:
		d.dialer.Leave()
	default:
		// The newest clients keep separate connections for pipelines.
		_ = d.client.Process(ctx, commandOf(ctx, drivers.Command{"QUIT"}))
		_ = d.client.Process(ctx, commandOf(ctx, drivers.Command{"PING"}))
		pipe := d.client.Pipeline()
		for _, cmd := range batchOf(ctx, []drivers.Command{{"QUIT"}, {"PING"}}) {
			_ = pipe.Process(ctx, cmd)
		}
		_, _ = pipe.Exec(ctx)
	}
}

func (d *driver) Close() error {
	if !d.lifecycle.Shut() || !d.owned {
		return nil
	}
	if d.dialer != nil {
		d.dialer.Close()
	}
	return d.client.Close()
}
