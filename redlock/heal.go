package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/node"
)

// healing is an acquisition, under the owner of a lease, on a node that lacks its lock: one that was not reached, that
// refused because of a fault that has passed, or that has lost the key. Nobody waits for it.
type healing struct {
	b    *backend
	l    *lease
	req  locker.Request
	sent time.Time
	call node.Call
}

// heal asks the nodes that lack the lock for it again, after an extension. It does not if the caller of the extension
// was called away: the lease may have ended.
func (u *leaseUpdate) heal(ctx context.Context) {
	b, l, now := u.b, u.l, time.Now()
	var refused []*healing
	l.mu.Lock()
	if end := validity(u.start, u.req.TTL); u.tally.outcome() == won && end.After(l.until) {
		l.until = end
	}
	l.over = l.over || now.After(l.until)
	l.heal(&u.tally, b.closed() || errors.Is(ctx.Err(), context.Canceled)).each(func(i int) {
		h := &healing{b: b, l: l, req: u.req, sent: now}
		// Above the token, also where the counter is forgotten and the clock slow.
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

// Late is told of the node's answer.
func (h *healing) Late(c *node.Call) {
	v := h.b.vote(c, c.Tag)
	if v.Granted || isHeld(v.Err) {
		h.b.health.answered(c.Tag, time.Since(h.sent))
	}
	h.b.late(h.l, &h.req, c, v)
}
