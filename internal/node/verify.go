package node

import (
	"context"

	"github.com/golocker/locker"
)

// Verify implements locker.Verifier.
func (n *Node) Verify(ctx context.Context, req locker.Request) error {
	n.calls.Enter()
	defer n.calls.Leave()
	cmd := n.attempt(&req).Verify(req.Fence)
	return n.owned(n.send(ctx, n.pipeline, cmd, req.TTL, min(req.TTL, n.timeout)/2, nil))
}

// Verify implements locker.Verifier.
func (c *Cluster) Verify(ctx context.Context, req locker.Request) error {
	return c.of(req.Key).Verify(ctx, req)
}

// StartVerify asks whether the lock is held and the node has issued no token newer than req.Fence. [Call.Owned] reads
// the outcome. See also [Node.StartAcquire].
func (n *Node) StartVerify(c *Call, ready chan<- *Call, tag int, req *locker.Request) {
	n.pipeline.Submit(c.of(n, ready, tag, n.attempt(req).Verify(req.Fence)))
}
