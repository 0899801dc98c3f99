package simnode

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

// Subscribe implements [drivers.Subscriber]. Opening the connection is a PING that passes through the network; what is
// published comes past it, see [Node.Deliver].
func (d *driver) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	return d.lifecycle.Subscribe(ctx, l, func(ctx context.Context) (drivers.Feed, error) {
		if _, err := d.Do(ctx, drivers.Command{"PING"}); err != nil {
			return nil, err
		}
		return d.node.connect(l, false), nil
	})
}

// connect returns the connection of a new subscriber, to sharded channels or to others.
func (n *Node) connect(l drivers.Listener, sharded bool) *feed {
	f := &feed{node: n, l: l, sharded: sharded, channels: map[string]bool{}, come: make(chan struct{}, 1),
		ended: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subscribers[f] = true
	return f
}

// Cut breaks all connections of subscribers, as a restart does.
func (n *Node) Cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for f := range n.subscribers {
		f.close()
	}
}

// Strand leaves the present subscribers connected to a replica, as a failover does with open connections. Messages
// reach them by replication, but the publisher does not count them.
func (n *Node) Strand() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for f := range n.subscribers {
		f.stranded = true
	}
}

// publish returns how many subscribers there are, also those that the message will not reach.
func (n *Node) publish(channel, payload string) (receivers int64) {
	for f := range n.subscribers {
		if f.channels[channel] && f.sharded == isSharded(channel) {
			if !f.stranded {
				receivers++
			}
			f.send(func() {
				if n.Deliver != nil {
					late, lost := n.Deliver(channel, payload)
					if lost || !f.wait(late) {
						return
					}
				}
				f.l.Message(channel, payload)
			})
		}
	}
	return receivers
}

// isSharded reports whether the scripts publish on channel with SPUBLISH.
func isSharded(channel string) bool { return strings.HasSuffix(channel, ":sharded") }

// feed is the connection of one subscriber.
type feed struct {
	node    *Node
	l       drivers.Listener
	sharded bool // it hears SPUBLISH, and not PUBLISH

	come  chan struct{} // has room for one: there is something under way
	ended chan struct{}
	once  sync.Once
	// guarded by the node's mu
	channels map[string]bool
	underWay []func()
	stranded bool // the messages that it gets do not count it
}

// send delivers an event to the subscriber. The caller holds the node's mu.
func (f *feed) send(what func()) {
	f.underWay = append(f.underWay, what)
	select {
	case f.come <- struct{}{}:
	default:
	}
}

// wait reports whether the connection is still there after a while.
func (f *feed) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.ended:
		return false
	}
}

func (f *feed) Receive() error {
	for {
		select {
		case <-f.come:
		case <-f.ended:
			return io.EOF
		}
		f.node.mu.Lock()
		come := f.underWay
		f.underWay = nil
		f.node.mu.Unlock()
		for _, what := range come {
			select {
			case <-f.ended:
				return io.EOF
			default:
				what()
			}
		}
	}
}

func (f *feed) Subscribe(channels []string) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	for _, channel := range channels {
		f.channels[channel] = true
		f.send(func() { f.l.Subscribed(channel) })
	}
	return nil
}

func (f *feed) Unsubscribe(channels []string) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	for _, channel := range channels {
		delete(f.channels, channel)
	}
	return nil
}

func (f *feed) Close() {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.close()
}

// close ends the connection. The node's mu is held.
func (f *feed) close() {
	f.once.Do(func() { close(f.ended) })
	delete(f.node.subscribers, f)
}
