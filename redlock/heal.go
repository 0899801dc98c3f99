package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
	"github.com/golocker/locker/internal/validity"
)

// healing is an acquisition for a lease that is held, on a node that lacks its lock. The node was not reached, or
// refused because of a fault that has passed, or has lost the key. Nobody waits for a healing.
type healing struct {
	b    *backend
	l    *lease
	req  locker.Request
	sent time.Time
	call node.Call
}

// heal asks the nodes that lack the lock for it again, after an extension. It asks none if the extension was cancelled,
// because the lease may have ended.
func (u *leaseUpdate) heal(ctx context.Context) {
	b, l, now := u.b, u.l, time.Now()
	var refused []*healing
	l.mu.Lock()
	if end := validity.Until(u.start, u.req.TTL); u.tally.outcome() == won && end.After(l.until) {
		l.until = end
	}
	l.over = l.over || now.After(l.until)
	l.heal(&u.tally, b.closed() || errors.Is(ctx.Err(), context.Canceled)).each(func(i int) {
		h := &healing{b: b, l: l, req: u.req, sent: now}
		// The hint makes the counter greater than the token, even if the node has lost its counter and its clock is
		// slow.
		b.nodes[i].StartAcquire(&h.call, nil, i, &h.req, node.Acquisition{Quantum: quantum, Hint: u.req.Fence})
		l.await(i, &h.call, len(b.nodes))
		if h.call.Follow(h) {
			refused = append(refused, h)
		}
	})
	l.mu.Unlock()
	for _, h := range refused {
		h.Late(&h.call)
	}
}

// Late is told the node's answer.
func (h *healing) Late(c *node.Call) {
	v := c.Vote()
	h.b.logDuplicate(c.Tag, v.Err)
	if v.Granted || isHeld(v.Err) {
		h.b.health.answered(c.Tag, time.Since(h.sent))
	}
	h.b.late(h.l, &h.req, c, &v)
}
