package node

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
)

const (
	// inboxLinger is how long the subscription stays open at least after its last listener has left. Under contention,
	// another listener comes soon.
	inboxLinger   = 5 * time.Second
	inboxMinPause = 20 * time.Millisecond
	inboxMaxPause = time.Second
	// inboxRefusedPause is the longest pause after the server has refused a subscription in a way that mostly lasts: it
	// does not know the command, or the user has no right to it.
	inboxRefusedPause = 10 * time.Second
)

// inbox receives the messages of a node's server, for any number of waiters, over one subscription connection. The
// first listener opens it. Messages are hints. While the connection is being opened or reopened, waiters poll faster.
// When it is ready, they look at the lock once more, because messages were lost meanwhile.
//
// A release skips a waiter that has no subscription on the release's own server. So the inbox trusts a subscription
// only while the server that commands go to counts it. After a failover, commands may go to the new master while this
// connection stays with the old one.
type inbox struct {
	// subscribe opens a subscription; nil: the driver has no subscriptions.
	subscribe func(context.Context, drivers.Listener) (drivers.Subscription, error)
	// begun says that a new subscription has the own channel already. A second confirmation would wake all waiters.
	begun    bool
	pipeline *pipeline.Pipeline // for probes
	timeout  time.Duration      // for opening a subscription
	name     string             // this inbox's own channel

	mu sync.Mutex
	// listeners has the listeners of the own channel by the payload that they wait for, and those of other channels by
	// the name of the channel. A Client has at most one waiter for a key, so there is one listener for each.
	listeners map[string]listener
	confirmed map[string]bool // channels that the server has confirmed
	// The server that commands go to has counted the subscription when it was last asked.
	counted bool
	heard   time.Time     // when the last message or confirmation came
	idle    time.Time     // since when there are no listeners
	running chan struct{} // closed when run has ended; nil if run is not running
	// changed has room for one. It receives when the wanted channels have changed, or the own channel is confirmed.
	changed chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
}

type listener struct {
	channel string
	// news must not block. It is called with true when a message has come, and with false when the channel is live.
	news func(told bool)
}

func newInbox(p *pipeline.Pipeline, timeout time.Duration, name string) *inbox {
	in := &inbox{
		pipeline: p, timeout: timeout, name: name,
		listeners: make(map[string]listener), confirmed: make(map[string]bool), changed: make(chan struct{}, 1),
	}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	return in
}

// live reports whether messages on a channel arrive, as far as is known.
func (in *inbox) live(channel string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.counted && in.confirmed[channel]
}

// expect has news called for messages on the own channel whose payload is id, until ignore(id) is called. If the
// channel is live already, news is not called for that.
func (in *inbox) expect(id string, news func(told bool)) { in.listen(id, listener{in.name, news}) }

// follow has news called for messages on another channel, until ignore(channel) is called.
func (in *inbox) follow(channel string, news func(told bool)) {
	in.listen(channel, listener{channel, news})
}

func (in *inbox) listen(id string, l listener) {
	if in.subscribe == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.listeners[id] = l
	switch live := in.counted && in.confirmed[l.channel]; {
	case live && l.channel == in.name:
		return // the usual case under contention
	case live:
		l.news(false)
	}
	in.change()
	if in.running == nil && in.ctx.Err() == nil {
		in.running = make(chan struct{})
		go in.run(in.running)
	}
}

func (in *inbox) ignore(id string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	l, ok := in.listeners[id]
	if !ok {
		return
	}
	delete(in.listeners, id)
	if l.channel != in.name {
		in.change()
	}
	if len(in.listeners) == 0 {
		in.idle = time.Now()
	}
}

// change wakes run.
func (in *inbox) change() {
	select {
	case in.changed <- struct{}{}:
	default:
	}
}

// close ends the inbox and waits for its goroutine until ctx ends.
func (in *inbox) close(ctx context.Context) {
	in.cancel()
	in.mu.Lock()
	running := in.running
	in.mu.Unlock()
	if running != nil {
		await(ctx, running)
	}
}

// run keeps a subscription open while there are listeners.
func (in *inbox) run(ended chan struct{}) {
	defer close(ended)
	var longest time.Duration
	for pause := inboxMinPause; ; pause = min(2*pause, longest) {
		lost := make(chan struct{})
		sub, err := in.open(lost)
		if longest = inboxMaxPause; refusedForGood(err) {
			longest = inboxRefusedPause
		}
		if err == nil {
			in.serve(sub, lost)
			_ = sub.Close()
			if in.live(in.name) { // the subscription worked
				pause = inboxMinPause
			}
		}
		if in.end() {
			return
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-t.C:
		case <-in.ctx.Done():
		}
		t.Stop()
	}
}

// end reports whether run has to end, because there are no listeners or the node is closed.
func (in *inbox) end() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	clear(in.confirmed)
	in.counted = false
	if len(in.listeners) > 0 && in.ctx.Err() == nil {
		return false
	}
	in.running = nil
	return true
}

// open opens a subscription. lost is closed when the subscription has ended.
func (in *inbox) open(lost chan struct{}) (drivers.Subscription, error) {
	ctx, cancel := context.WithTimeout(in.ctx, in.timeout)
	defer cancel()
	return in.subscribe(ctx, drivers.Listener{
		Subscribed: in.subscribed,
		Message:    in.message,
		Lost:       func(error) { close(lost) },
	})
}

// serve keeps the channels of the subscription up to date. It returns when the subscription is lost or silent, when the
// server does not count it, when there have been no listeners for a while, or when the node is closed.
func (in *inbox) serve(sub drivers.Subscription, lost <-chan struct{}) {
	p := in.newProber()
	defer p.tick.Stop()
	in.hear()
	for has := map[string]bool{in.name: in.begun}; ; {
		add, remove := in.difference(has)
		if len(add) > 0 && sub.Subscribe(add...) != nil || len(remove) > 0 && sub.Unsubscribe(remove...) != nil {
			return
		}
		select {
		case <-in.changed:
			if !p.asked {
				p.send()
			}
		case <-p.tick.C:
			if in.useless() {
				return
			}
			p.sendDue()
		case c := <-p.answers:
			if !p.counts(c) {
				return
			}
		case <-lost:
			return
		case <-in.ctx.Done():
			return
		}
	}
}
