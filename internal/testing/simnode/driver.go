package simnode

import (
	"context"

	"github.com/golocker/locker/drivers"
)

// Network stands between a client and a node. It may execute a batch late, twice or never, and lose the replies. The
// network of a driver with the option [Direct] must return when ctx ends.
type Network func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error)

// Option gives a driver a personality that the drivers of some clients have.
type Option func(*connection)

// Direct makes a driver keep to deadlines without a Done channel, as a [drivers.Direct] does, for as long as connected
// returns true.
func Direct(connected func() bool) Option { return func(c *connection) { c.direct = connected } }

// connection is what the drivers of one node and of a cluster have in common.
type connection struct {
	direct    func() bool // nil: the driver does not keep to deadlines without a Done channel
	lifecycle drivers.Lifecycle
}

func newConnection(opts []Option) *connection {
	c := &connection{}
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// Direct implements [drivers.Direct].
func (c *connection) Direct() bool { return c.direct != nil && c.direct() }

func (c *connection) Close() error {
	c.lifecycle.Shut()
	return nil
}

// enter begins a call of Do. It returns a context with a Done channel that is closed at the deadline of ctx.
func (c *connection) enter(ctx context.Context) (context.Context, context.CancelFunc, error) {
	err := c.lifecycle.Enter(ctx)
	if end, ok := ctx.Deadline(); ok && c.direct != nil && ctx.Done() == nil {
		ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
		return ctx, cancel, err
	}
	return ctx, func() {}, err
}

// Driver returns a driver for the node whose commands pass through w; nil executes each once, at once.
func (n *Node) Driver(w Network, opts ...Option) drivers.Driver {
	return &driver{newConnection(opts), server{n, w}}
}

type driver struct {
	*connection
	server
}

func (d *driver) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	ctx, cancel, err := d.enter(ctx)
	defer cancel()
	if err != nil {
		return nil, err
	}
	return d.send(ctx, cmds)
}

// server is a node behind a network.
type server struct {
	node    *Node
	network Network
}

// send sends a batch through the network.
func (s server) send(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
	execute := func() []drivers.Reply {
		replies := make([]drivers.Reply, len(cmds))
		for i, cmd := range cmds {
			replies[i] = s.node.Execute(cmd)
		}
		return replies
	}
	if s.network == nil {
		return execute(), nil
	}
	return s.network(ctx, cmds, execute)
}
