package simnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// Cluster returns a driver for nodes that each have a range of the hash slots, as the client of a Redis Cluster. The
// commands to node i pass through network(i). The nodes must be different ones, each with a network of its own.
//
// A batch for several nodes is sent to all of them at once. As the contract of drivers has it, its outcome is unknown
// if one of them does not answer.
func Cluster(nodes []*Node, network func(i int) Network, opts ...Option) drivers.Cluster {
	c := &cluster{connection: newConnection(opts)}
	for i, n := range nodes {
		c.servers = append(c.servers, server{n, network(i)})
		first := func(i int) int { return (i*script.Slots + len(nodes) - 1) / len(nodes) }
		n.mu.Lock()
		n.slots = fmt.Sprintf("%d-%d", first(i), first(i+1)-1)
		n.mu.Unlock()
	}
	return c
}

// ServerOf returns the index of the node that has key, in a [Cluster] of n nodes.
func ServerOf(key string, n int) int { return int(script.Slot(key)) * n / script.Slots }

type cluster struct {
	*connection
	servers []server
}

// Cluster implements [drivers.Cluster].
func (*cluster) Cluster() {}

// SubscribeShard implements [drivers.ShardSubscriber].
func (c *cluster) SubscribeShard(
	ctx context.Context, channel string, l drivers.Listener,
) (drivers.Subscription, error) {
	s := c.servers[ServerOf(channel, len(c.servers))]
	return c.lifecycle.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
		if _, err := s.send(ctx, []drivers.Command{{"PING"}}); err != nil {
			return nil, err
		}
		f := s.node.connect(l, true)
		_ = f.Subscribe([]string{channel})
		return f, nil
	})
}

func (c *cluster) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	ctx, cancel, err := c.enter(ctx)
	defer cancel()
	if err != nil {
		return nil, err
	}
	parts := make([]part, len(c.servers))
	replies := make([]drivers.Reply, len(cmds))
	for i, cmd := range cmds {
		k := keys(cmd)
		if slices.ContainsFunc(k, func(key string) bool { return script.Slot(key) != script.Slot(k[0]) }) {
			replies[i] = drivers.ServerError("CROSSSLOT Keys in request don't hash to the same slot")
			continue
		}
		p := &parts[0] // for commands without keys
		if len(k) > 0 {
			p = &parts[ServerOf(k[0], len(c.servers))]
		}
		p.cmds, p.places = append(p.cmds, cmd), append(p.places, i)
	}
	c.send(ctx, parts)
	for _, p := range parts {
		for i, reply := range p.replies {
			replies[p.places[i]] = reply
		}
	}
	if err := failure(parts); err != nil {
		return nil, err
	}
	return replies, nil
}

// part is what one server gets of a batch.
type part struct {
	cmds    []drivers.Command
	places  []int // of the commands in the batch
	replies []drivers.Reply
	err     error
}

// send sends its part to each server, from the goroutine of the caller if there is one part only.
func (c *cluster) send(ctx context.Context, parts []part) {
	var others sync.WaitGroup
	used := slices.IndexFunc(parts, func(p part) bool { return len(p.cmds) > 0 })
	for i := range parts {
		p := &parts[i]
		if i > used && len(p.cmds) > 0 {
			others.Go(func() { p.replies, p.err = c.servers[i].send(ctx, p.cmds) })
		}
	}
	if used >= 0 {
		p := &parts[used]
		p.replies, p.err = c.servers[used].send(ctx, p.cmds)
	}
	others.Wait()
}

// failure returns the error of a batch. It matches [drivers.ErrNotSent] only if no part of the batch was sent.
func failure(parts []part) (unsent error) {
	sent := false
	for _, p := range parts {
		switch {
		case len(p.cmds) == 0:
		case errors.Is(p.err, drivers.ErrNotSent):
			unsent = p.err
		case p.err != nil:
			return p.err
		default:
			sent = true
		}
	}
	if sent && unsent != nil {
		return errors.New("a part of the batch was not sent: " + unsent.Error()) // which hides ErrNotSent
	}
	return unsent
}

// keys returns the keys of a script's call, and of a release without a script, or a sharded channel.
func keys(cmd drivers.Command) []string {
	switch cmd[0] {
	case "EVAL", "EVALSHA":
		n, _ := strconv.Atoi(cmd[2])
		return cmd[3 : 3+n]
	case "DELEX", "DELIFEQ", "SPUBLISH":
		return cmd[1:2]
	default:
		return nil
	}
}
