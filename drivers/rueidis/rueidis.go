// Package rueidis carries commands by github.com/redis/rueidis. Importing it registers the driver "rueidis".
package rueidis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

func init() { drivers.Register("rueidis", open) }

type driver struct {
	client         rueidis.Client
	cluster, owned bool
	gate           drivers.Gate
	// live says that the last exchange went well and nothing has been dialled since.
	live atomic.Bool
}

// New makes a driver of client, which stays the caller's: Close leaves it open. A cluster will do, with every key of
// one script in one slot; nobody is told there that a lock is free: who waits looks every 50 to 100 ms. The documentation
// of package single says what holds on a cluster.
//
// Give the client no ConnLifetime: what a connection has not answered a second after its end is sent again then, as after a lost
// reply by a proxy, and a release can be told that the lock was not held.
//
// Calls share connections, and when the deadline of one of them ends its connection, the others on it fail with it.
// Each subscription takes one of the BlockingPoolSize.
func New(client rueidis.Client) drivers.Driver {
	if client.Mode() == rueidis.ClientModeCluster {
		return &spread{driver{client: client, cluster: true}}
	}
	return &subscriber{driver: driver{client: client}, opening: make(chan struct{}, 1)}
}

// spread is the driver of a client that knows several servers.
type spread struct{ driver }

// Spread implements [drivers.Spread].
func (*spread) Spread() {}

func open(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
	// NewClient dials. Its first attempt fails here, unasked, which ForceSingleClient forgives: the client that comes
	// back with the error dials again, once for all callers that wait, when it is first used.
	lazy := true
	d := &subscriber{driver: driver{owned: true}, opening: make(chan struct{}, 1)}
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{cfg.Addr}, Username: cfg.Username, Password: cfg.Password, SelectDB: cfg.DB,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if lazy {
				return nil, errors.New("not dialled yet")
			}
			d.live.Store(false)
			return cfg.Dial(ctx)
		},
		Dialer:              net.Dialer{Timeout: cfg.Timeout}, // for the handshake
		ConnWriteTimeout:    cfg.Timeout,
		ForceSingleClient:   true,
		DisableCache:        true,
		DisableRetry:        true,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
		PipelineMultiplex:   -1, // one connection
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
	})
	if client == nil {
		return nil, err
	}
	lazy, d.client = false, client
	return d, nil
}

// Direct implements drivers.Direct.
func (d *driver) Direct() bool { return d.live.Load() }

func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if err := d.gate.Enter(ctx); err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok && ctx.Done() == nil {
		// The client keeps to the deadline by itself while it has the connection for one caller. When it pipelines, it
		// asks for Done.
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	batch := make(rueidis.Commands, len(cmds))
	for i, cmd := range cmds {
		batch[i] = d.build(cmd)
	}
	if d.live.Load() {
		return d.exchange(ctx, batch, true)
	}
	// Whoever finds the connection being dialled waits for that attempt, which keeps to somebody else's deadline.
	// Always waiting in a goroutine would be simpler, and half as slow again for a lone caller.
	return drivers.Await(ctx, func() ([]drivers.Reply, error) { return d.exchange(ctx, batch, false) })
}

func (d *driver) build(cmd drivers.Command) rueidis.Completed {
	c := d.client.B().Arbitrary(cmd...).Build()
	if d.cluster {
		// A batch in which some commands have a slot and others do not would make the client panic. A wrong guess
		// costs a redirection.
		c = c.SetSlot(key(cmd))
	}
	return c
}

// key returns the first key of a script call, and of other commands the first argument or the name.
func key(cmd drivers.Command) string {
	if len(cmd) > 3 && cmd[2] != "0" && (strings.EqualFold(cmd[0], "EVALSHA") || strings.EqualFold(cmd[0], "EVAL")) {
		return cmd[3]
	}
	return cmd[min(1, len(cmd)-1)]
}

// exchange sends a batch. connected says that there was a connection before.
func (d *driver) exchange(ctx context.Context, batch rueidis.Commands, connected bool) ([]drivers.Reply, error) {
	results := d.client.DoMulti(ctx, batch...)
	replies := make([]drivers.Reply, len(results))
	var failures []error
	for i, result := range results {
		var err error
		if replies[i], err = reply(result); err != nil {
			failures = append(failures, err)
		}
	}
	d.live.Store(len(failures) == 0)
	// rueidis.ErrClosing does not count as not sent: it also ends calls that are under way when the client is closed.
	unsent := drivers.DialFailed
	if connected && !d.owned && !d.cluster {
		// A user's client may have a ConnLifetime, and this may be the second time that it tried to send. Clients of clusters
		// are not held to that: some of their servers may be in order while another one is down for long.
		unsent = func(error) bool { return false }
	}
	return drivers.Outcome(replies, failures, unsent)
}

func (d *driver) Close() error {
	if d.gate.Shut() && d.owned {
		d.client.Close()
	}
	return nil
}
