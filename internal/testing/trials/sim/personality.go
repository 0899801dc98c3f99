package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/single"
)

// Personality says what the drivers are besides drivers, as those of real clients are.
type Personality struct {
	Cluster bool // one driver for all nodes, which are the servers of a Redis Cluster
	// Spared, of a Cluster: nothing happens to the node that has the first key, nor to the messages to it. Whatever
	// happens to the others, it must not be noticed there.
	Spared bool
	Direct int // how many of the clients have drivers that keep to deadlines, so that callers send inline
}

func (p Personality) String() string {
	s := ""
	if p.Cluster {
		s += " of a cluster"
	}
	if p.Spared {
		s += ", one spared"
	}
	if p.Direct > 0 {
		s += fmt.Sprintf(", %d direct", p.Direct)
	}
	return s
}

// drawPersonality draws the personality, and changes what has to be different with it.
func (o *Options) drawPersonality(r *rand.Rand) {
	if r.IntN(2) == 0 {
		o.Direct = 1 + r.IntN(o.Clients)
	}
	if o.Nodes <= 3 && r.IntN(4) == 0 {
		o.Cluster, o.Nodes, o.Keys = true, 2+r.IntN(2), 2
		if o.Spared = r.IntN(3) > 0; o.Spared { // what happens to a client happens to its messages to all nodes
			o.Factors[paused], o.Factors[died] = 0, 0
		}
	}
	if o.Direct > 0 && r.IntN(3) == 0 { // more than a pipeline has exchanges in flight
		o.Workers, o.Keys = 6, 6
	}
}

// quorum reports whether several nodes have each lock.
func (o *Options) quorum() bool { return o.Nodes > 1 && !o.Cluster }

// serverOf returns the node of a Cluster that has key.
func (w *world) serverOf(key string) *server {
	return w.nodes[simnode.ServerOf(single.DefaultPrefix+key, len(w.nodes))]
}

func (s *server) isSpared() bool { return s.world.Spared && s == s.world.serverOf(s.world.keys[0]) }

func (w *world) isSpared(key string) bool { return w.Spared && w.serverOf(key).isSpared() }

// drivers returns the drivers for the client's Locker.
func (c *client) drivers() (ds []drivers.Driver) {
	options := func(links ...*link) []simnode.Option {
		if !c.direct {
			return nil
		}
		return []simnode.Option{simnode.Direct(func() bool {
			return slices.ContainsFunc(links, func(l *link) bool { return l.connected.Load() })
		})}
	}
	var nodes []*simnode.Node
	for _, l := range c.links {
		nodes = append(nodes, l.server.Node)
		ds = append(ds, l.server.Driver(l.deliver, options(l)...))
	}
	if c.world.Cluster {
		network := func(i int) simnode.Network { return c.links[i].deliver }
		return []drivers.Driver{simnode.Cluster(nodes, network, options(c.links...)...)}
	}
	return ds
}

// context returns a context for a call. It ends after limit, unless it is plain: then it has no Done channel.
func (c *client) context(plain bool, limit time.Duration) (context.Context, context.CancelFunc) {
	if plain {
		return context.WithoutCancel(c.world.Context()), func() {}
	}
	return context.WithTimeout(c.world.Context(), limit)
}

// note counts what the client's driver is given to send. It is called from the goroutine that calls the driver, unless
// the batch is for several servers.
func (c *client) note(cmds []drivers.Command) {
	if !c.direct {
		return
	}
	if len(cmds) > 1 {
		c.world.count("batches of direct drivers", 1)
	}
	if isWorker() {
		c.world.count("inline exchanges", 1)
	}
}

// isWorker reports whether the calling goroutine is that of a worker.
func isWorker() bool {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasSuffix(f.Function, ".(*client).round") {
			return true
		}
	}
	return false
}

// promptly is how much later than it should a call may return.
const promptly = 2 * time.Millisecond

// bounded (BOUND): nothing but time ends a call whose context has no Done channel. On a single node it consists of an
// exchange and perhaps a claim, each bounded by the TTL and by the timeout.
func (c *client) bounded(ctx context.Context, what string, p plan, call time.Time) {
	w := c.world
	bound, took := 2*min(p.ttl, w.Timeout)+promptly, time.Since(call)
	if ctx.Done() == nil && !w.quorum() && took > bound {
		w.violated("BOUND", fmt.Sprintf("key %s: %s by client %d with a TTL of %v took %v", p.key, what, c.id, p.ttl,
			took))
	}
}

// apart (APART): on a cluster, what happens to other servers is not noticed by calls on the one that is spared.
func (c *client) apart(ctx context.Context, what, key string, err error) {
	w := c.world
	if w.isSpared(key) && errors.Is(err, locker.ErrUnavailable) && !isResting(err) && ctx.Err() == nil {
		w.violated("APART", fmt.Sprintf("key %s: %s by client %d: %v", key, what, c.id, err))
	}
	isIll := func(s *server) bool { return s != w.serverOf(key) && s.isIll() }
	if w.Cluster && err == nil && slices.ContainsFunc(w.nodes, isIll) {
		w.count("calls beside a server that is ill", 1)
	}
}

// isResting reports whether err is the answer of a node that rests. With the guard, new nodes do.
func isResting(err error) bool {
	var resting *locker.GracePeriodError
	return errors.As(err, &resting)
}

// keptApart (APART) is about a lease that is renewed.
func (c *client) keptApart(lease locker.Lease) {
	var lost *locker.LostError
	if c.world.isSpared(lease.Key()) && errors.As(lease.Err(), &lost) {
		c.world.violated("APART", fmt.Sprintf("key %s: a lease of client %d: %v", lease.Key(), c.id, lost))
	}
}

// isIll reports whether the node is down or hangs.
func (s *server) isIll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down || s.stopped != nil
}
