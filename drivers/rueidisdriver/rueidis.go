// Package rueidisdriver is a driver for the client github.com/redis/rueidis. Importing it registers the driver
// "rueidis".
package rueidisdriver

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

type driver struct {
	client         rueidis.Client
	cluster, owned bool
	dialer         *drivers.Dialer // of an owned client of one server; else nil
	lifecycle      drivers.Lifecycle
	// live says that the last exchange succeeded and that no connection was dialled since.
	live atomic.Bool
}

// New returns a driver that uses client. The client belongs to the caller, and Close leaves it open.
//
// The client may be that of a cluster. All keys of one script must then be in one slot. The documentation of package
// single describes locks on a cluster.
//
// Do not set ConnLifetime of the client. With it, the client sends commands again that are unanswered one second after
// the end of their connection. A release may then be executed twice and report that the lock was not held.
//
// If the server answers as a replica does, the driver sends QUIT, so that the client connects again. What else the
// program does on that connection may then fail. A client that follows sentinels goes to another master only when one
// of them announces it, and stays at a replica otherwise. A driver that is opened for sentinels, as by a URL, asks
// them.
//
// Calls share connections. If the deadline of a call ends its connection, the other calls on that connection fail as
// well. Each subscription uses one connection of the BlockingPoolSize. So does each batch that waits for replicas, see
// single.WaitReplicas; a Client has up to four of these at a time.
func New(client rueidis.Client) drivers.Driver {
	if client.Mode() == rueidis.ClientModeCluster {
		return &cluster{driver: driver{client: client, cluster: true}, opening: make(chan struct{}, maxOpening)}
	}
	return &subscriber{driver: driver{client: client}, opening: make(chan struct{}, 1)}
}

// cluster is the driver of a client that uses several servers.
type cluster struct {
	driver
	opening chan struct{} // a semaphore: so many calls of SubscribeShard at a time may connect
}

// Cluster implements [drivers.Cluster].
func (*cluster) Cluster() {}

// Direct implements [drivers.Direct].
func (d *driver) Direct() bool { return d.live.Load() }

func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := d.lifecycle.Enter(ctx); err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok && ctx.Done() == nil {
		// The client observes the deadline without Done while one caller uses the connection. When it pipelines the
		// commands of several callers, it needs Done.
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	batch := make(rueidis.Commands, len(cmds))
	blocks := false
	for i, cmd := range cmds {
		batch[i] = d.build(cmd)
		blocks = blocks || isBlocking(cmd)
	}
	if blocks && !d.cluster {
		// The client itself keeps to the context while it waits for a connection of its blocking pool, or dials one.
		replies, err := d.exchange(ctx, batch, drivers.DialFailed)
		d.heed(ctx, replies, true)
		return replies, err
	}
	if d.live.Load() {
		return d.shared(ctx, batch, true)
	}
	// If another call is dialling the connection, this one waits for it, and that call observes only its own deadline.
	// Await lets this call return in time. Using Await for every call would be simpler, but slower for a single caller.
	return drivers.Await(ctx, func() ([]drivers.Reply, error) { return d.shared(ctx, batch, false) })
}

// isBlocking reports whether cmd is WAIT. The client sends a batch with a blocking command on a connection of its
// blocking pool, which no other call uses meanwhile. It does not apply ConnWriteTimeout there.
func isBlocking(cmd drivers.Command) bool { return strings.EqualFold(cmd[0], "WAIT") }

func (d *driver) build(cmd drivers.Command) rueidis.Completed {
	build := d.client.B().Arbitrary(cmd...).Build
	if isBlocking(cmd) {
		build = d.client.B().Arbitrary(cmd...).Blocking
	}
	c := build()
	if d.cluster {
		// The client panics if some commands of a batch have a slot and others do not. A wrong slot causes a
		// redirection.
		c = c.SetSlot(key(cmd))
	}
	return c
}

// key returns the first key of a script call. For other commands, it returns the first argument, or the name if there
// is none.
func key(cmd drivers.Command) string {
	if len(cmd) > 3 && cmd[2] != "0" && (strings.EqualFold(cmd[0], "EVALSHA") || strings.EqualFold(cmd[0], "EVAL")) {
		return cmd[3]
	}
	return cmd[min(1, len(cmd)-1)]
}

// shared is exchange on a connection that calls share. connected says that there was one before the call.
func (d *driver) shared(ctx context.Context, batch rueidis.Commands, connected bool) ([]drivers.Reply, error) {
	// rueidis.ErrClosing does not count as not sent, because it also ends calls that wait for an answer when the client
	// is closed.
	unsent := drivers.DialFailed
	if connected && !d.owned && !d.cluster {
		// A user's client may have a ConnLifetime, so the error may be from sending the command a second time. This is
		// not applied to clusters, where some servers may work while another one is down for a long time.
		unsent = func(error) bool { return false }
	}
	replies, err := d.exchange(ctx, batch, unsent)
	d.live.Store(err == nil)
	d.heed(ctx, replies, false)
	return replies, err
}

// heed leaves the connections if they are stale. A server of a cluster redirects instead.
//
// QUIT makes the server close the connection that calls share, or the one that was used last for a batch that blocks,
// and PING makes the client see that: a connection that this process closed would be used once more. An owned client
// then also leaves its other connections, which wait for messages or for batches that block.
func (d *driver) heed(ctx context.Context, replies []drivers.Reply, blocks bool) {
	if d.cluster || !d.lifecycle.Stale(replies) {
		return
	}
	d.live.Store(false)
	quit, ping := d.client.B().Arbitrary("QUIT"), d.client.B().Arbitrary("PING")
	if blocks {
		d.client.DoMulti(ctx, quit.Blocking(), ping.Blocking())
	} else {
		d.client.DoMulti(ctx, quit.Build(), ping.Build())
	}
	if d.owned {
		d.dialer.Leave()
	}
}

// exchange sends a batch and waits for the replies. unsent says which errors prove that a command was not sent.
func (d *driver) exchange(
	ctx context.Context, batch rueidis.Commands, unsent func(error) bool,
) ([]drivers.Reply, error) {
	results := d.client.DoMulti(ctx, batch...)
	replies := make([]drivers.Reply, len(results))
	var failures []error
	for i, result := range results {
		var err error
		if replies[i], err = reply(result); err != nil {
			failures = append(failures, err)
		}
	}
	return drivers.Outcome(replies, failures, unsent)
}

func (d *driver) Close() error {
	if d.lifecycle.Shut() && d.owned {
		if d.dialer != nil {
			d.dialer.Close()
		}
		d.client.Close()
	}
	return nil
}
