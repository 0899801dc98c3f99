package placestest

import (
	"context"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/testing/simnode"
)

// redis opens the Backends of processes that share a simulated Redis. What a Calls does to a call, it does to theirs.
func redis(c *Calls) func() backend.Backend {
	server := simnode.New()
	c.redis = func() *node.Node {
		return node.New(server.Driver(nil), node.Options{Name: "redis", Prefix: "lock:"})
	}
	return func() backend.Backend { return onRedis{c.redis(), c} }
}

type onRedis struct {
	*node.Node
	calls *Calls
}

func (r onRedis) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	return r.calls.acquire(ctx, r.Node, req)
}

func (r onRedis) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	return r.calls.queue(ctx, r.Node, req, wait)
}

// Release does not fail, also if its context ends before the request goes on.
func (r onRedis) Release(ctx context.Context, req backend.Request) error {
	return r.calls.release(context.WithoutCancel(ctx), r.Node, req)
}

func (r onRedis) Extend(ctx context.Context, req backend.Request) error {
	return r.calls.extend(ctx, r.Node, req)
}
