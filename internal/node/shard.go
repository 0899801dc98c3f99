package node

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// maxShards is how many slots of a Redis Cluster a Client may have subscriptions for at a time. Each is a connection.
// While there are more slots with waiters, those of the other slots poll.
const maxShards = 64

// shards are the inboxes of a node of a Redis Cluster: one for each slot that has had waiters. A sharded channel
// belongs to a slot, because its subscribers have to be connected to the slot's master, whose scripts count them.
type shards struct {
	driver drivers.ShardSubscriber
	open   chan struct{} // a semaphore with room for maxShards, which the nodes of a Cluster share

	mu      sync.Mutex
	closed  bool
	inboxes map[uint16]*inbox
}

// shardsOf returns what a node needs for the sharded channels of d, or nil if d has none. open may be nil.
func shardsOf(d drivers.Driver, open chan struct{}) *shards {
	if p, ok := d.(part); ok {
		d = p.Driver
	}
	s, ok := d.(drivers.ShardSubscriber)
	if !ok {
		return nil
	}
	if open == nil {
		open = make(chan struct{}, maxShards)
	}
	return &shards{driver: s, open: open, inboxes: make(map[uint16]*inbox)}
}

// inboxOf returns the inbox for the waiters of a lock.
func (n *Node) inboxOf(keys script.Keys) *inbox {
	if n.shards == nil {
		return n.inbox
	}
	slot := script.Slot(keys.Lock)
	n.shards.mu.Lock()
	defer n.shards.mu.Unlock()
	in := n.shards.inboxes[slot]
	if in == nil {
		in = newInbox(n.pipeline, n.inbox.timeout, script.ShardedInbox(n.prefix, n.id, slot))
		in.begun = true
		in.subscribe = func(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
			return n.shards.subscribe(ctx, in.name, l)
		}
		if n.shards.inboxes[slot] = in; n.shards.closed {
			in.cancel()
		}
	}
	return in
}

var errManyShards = errors.New("there are subscriptions for many other slots")

// subscribe opens a subscription, unless there are maxShards.
func (s *shards) subscribe(ctx context.Context, channel string, l drivers.Listener) (drivers.Subscription, error) {
	select {
	case s.open <- struct{}{}:
	default:
		return nil, errManyShards
	}
	lost := l.Lost
	l.Lost = func(err error) {
		<-s.open
		lost(err)
	}
	sub, err := s.driver.SubscribeShard(ctx, channel, l)
	if err != nil {
		<-s.open // if it fails, Lost is not called
	}
	return sub, err
}

// close ends the inboxes, and waits for their goroutines until ctx ends.
func (s *shards) close(ctx context.Context) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	inboxes := slices.Collect(maps.Values(s.inboxes))
	s.mu.Unlock()
	for _, in := range inboxes {
		in.cancel()
	}
	for _, in := range inboxes {
		in.close(ctx)
	}
}

// refusedForGood reports whether err is a refusal that will be the same for some time.
func refusedForGood(err error) bool {
	var refusal drivers.ServerError
	return errors.As(err, &refusal) && (refusal.Code() == "ERR" || refusal.Code() == "NOPERM")
}
