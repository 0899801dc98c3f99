package node

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

const (
	movingMinPause = 5 * time.Millisecond
	movingMaxPause = 100 * time.Millisecond
)

// grant sends a command that grants or prolongs a lock, and waits for the reply; see [Node.send]. What was granted too
// late has to be undone whether replicas have it or not, so late is not told of a shortfall.
func (n *Node) grant(
	ctx context.Context, cmd script.Command, limit time.Duration, late func(drivers.Reply, error),
) (drivers.Reply, error) {
	if told := late; told != nil && n.granting != n.pipeline {
		late = func(reply drivers.Reply, err error) {
			if isShortfall(err) {
				err = nil
			}
			told(reply, err)
		}
	}
	return n.send(ctx, n.granting, cmd, limit, min(limit, n.timeout)/2, late)
}

// send sends a command and waits for the reply; see [pipeline.Pipeline.Do].
//
// While a slot of a Redis Cluster moves from one server to another, its keys are in two places, and servers refuse
// scripts that need several of them. A lock that is free is a key that does not exist, so most scripts are refused
// until the slot has arrived, also by the new server. send asks again for as long as moving says. A refusal executes
// nothing, so that changes nothing about what the command may do.
func (n *Node) send(
	ctx context.Context, p *pipeline.Pipeline, cmd script.Command, limit, moving time.Duration,
	late func(drivers.Reply, error),
) (drivers.Reply, error) {
	if !n.sharded {
		return p.Do(ctx, cmd, limit, late)
	}
	limit = min(limit, n.timeout) // of all tries together
	begun := time.Now()
	for pause := movingMinPause; ; pause = min(2*pause, movingMaxPause) {
		reply, err := p.Do(ctx, cmd, limit-time.Since(begun), late)
		if err != nil || !isMoving(reply) || time.Since(begun)+pause > moving {
			return reply, err
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-t.C:
		case <-ctx.Done():
		case <-n.closing:
		}
		t.Stop()
		if ctx.Err() != nil || n.closed() || time.Since(begun) >= limit {
			return reply, nil //nolint:nilerr // the reply says why
		}
	}
}
