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
	// inboxLinger is how long the subscription outlives its last listener, at least: under contention there is soon
	// another.
	inboxLinger = 5 * time.Second
	// inboxProbe is how often the inbox sends a message to itself. One that has heard nothing for two probes and a half
	// is dead, whatever its connection says; so is one whose message the server says that nobody received.
	inboxProbe = 4 * time.Second

	inboxMinPause = 20 * time.Millisecond
	inboxMaxPause = time.Second
)

// inbox is where a node's server sends messages to: one subscription connection for any number of waiters, opened when
// the first one listens. Messages are hints. While the connection is being made, or made again, waiters poll faster,
// and they look at the lock once more when it is ready, because messages were lost meanwhile.
//
// A release passes over a waiter that listens nowhere on its own server. So the subscription is believed only while the
// server that commands go to counts it: after a failover, commands may go to the new master while this connection stays
// with the old one.
type inbox struct {
	driver   drivers.Subscriber // nil: there are no messages to be had
	pipeline *pipeline.Pipeline // for probes
	timeout  time.Duration      // of opening a subscription
	name     string             // the channel that is this inbox's own

	mu sync.Mutex
	// listeners are those of the own channel by the payload that they wait for, and those of other channels by its
	// name: a Client has one waiter for a key at a time.
	listeners map[string]listener
	confirmed map[string]bool // channels that the server of the subscription has confirmed
	counted   bool            // the server that commands go to has counted the subscription, the last time it was asked
	heard     time.Time       // when anything came last
	idle      time.Time       // since when there are no listeners
	running   chan struct{}   // closed when run has ended; nil while there is none
	changed   chan struct{}   // has room for one: the channels that are wanted have changed, or the own one is confirmed

	ctx    context.Context
	cancel context.CancelFunc
}

type listener struct {
	channel string
	// news is called without blocking: told says that a message has come, otherwise the channel was confirmed.
	news func(told bool)
}

func newInbox(d drivers.Driver, p *pipeline.Pipeline, timeout time.Duration, name string) *inbox {
	in := &inbox{
		pipeline: p, timeout: timeout, name: name,
		listeners: make(map[string]listener), confirmed: make(map[string]bool), changed: make(chan struct{}, 1),
	}
	in.driver, _ = d.(drivers.Subscriber)
	in.ctx, in.cancel = context.WithCancel(context.Background())
	return in
}

// live reports whether messages on a channel arrive, as far as is known.
func (in *inbox) live(channel string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.counted && in.confirmed[channel]
}

// expect calls news for messages to id on the own channel, until ignore is called for it. If the channel is live
// already, it does not say so.
func (in *inbox) expect(id string, news func(told bool)) { in.listen(id, listener{in.name, news}) }

// follow calls news for messages on another channel, until ignore is called for it.
func (in *inbox) follow(channel string, news func(told bool)) {
	in.listen(channel, listener{channel, news})
}

func (in *inbox) listen(id string, l listener) {
	if in.driver == nil {
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
	for pause := inboxMinPause; ; pause = min(2*pause, inboxMaxPause) {
		lost := make(chan struct{})
		if sub, err := in.open(lost); err == nil {
			in.serve(sub, lost)
			_ = sub.Close()
			if in.live(in.name) { // it worked: the server was there, and did not refuse the channel
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

// end ends the run if nobody listens any more or the node is closed.
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

// open makes a subscription; lost is closed when it has ended.
func (in *inbox) open(lost chan struct{}) (drivers.Subscription, error) {
	ctx, cancel := context.WithTimeout(in.ctx, in.timeout)
	defer cancel()
	return in.driver.Subscribe(ctx, drivers.Listener{
		Subscribed: in.subscribed,
		Message:    in.message,
		Lost:       func(error) { close(lost) },
	})
}

// serve keeps the subscription's channels what they should be, until it is lost or silent, or the server does not count
// it, or nobody has listened for a while, or the node is closed.
func (in *inbox) serve(sub drivers.Subscription, lost <-chan struct{}) {
	tick := time.NewTicker(inboxProbe)
	defer tick.Stop()
	answers := make(chan *pipeline.Call, 1)
	var asked, unanswered bool // once; by the last probe
	probe := func() {
		if !unanswered {
			unanswered = in.probe(answers)
			asked = asked || unanswered
		}
	}
	in.hear()
	for has := map[string]bool{}; ; {
		add, remove := in.difference(has)
		if len(add) > 0 && sub.Subscribe(add...) != nil || len(remove) > 0 && sub.Unsubscribe(remove...) != nil {
			return
		}
		select {
		case <-in.changed:
			if !asked {
				probe()
			}
		case <-tick.C:
			if in.useless() {
				return
			}
			probe()
		case c := <-answers:
			unanswered = false
			asked = !isNotSent(c.Err)
			if !in.count(c) {
				return
			}
		case <-lost:
			return
		case <-in.ctx.Done():
			return
		}
	}
}

// difference brings has, the channels of a subscription, up to date, and returns what has to be asked for that.
func (in *inbox) difference(has map[string]bool) (add, remove []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	want := map[string]bool{in.name: true}
	for _, l := range in.listeners {
		want[l.channel] = true
	}
	for c := range want {
		if !has[c] {
			has[c] = true
			add = append(add, c)
		}
	}
	for c := range has {
		if !want[c] {
			delete(has, c)
			delete(in.confirmed, c)
			remove = append(remove, c)
		}
	}
	return add, remove
}

// probe sends a message to the own channel, if that is confirmed: before, nobody would receive it. It reports whether
// the message is under way; answers, which has room for it, gets the answer.
func (in *inbox) probe(answers chan<- *pipeline.Call) bool {
	in.mu.Lock()
	confirmed := in.confirmed[in.name]
	in.mu.Unlock()
	if confirmed {
		c := &pipeline.Call{Command: pipeline.Command{Words: drivers.Command{"PUBLISH", in.name, ""}}}
		in.pipeline.Submit(c, func() { answers <- c })
	}
	return confirmed
}

// count takes the answer to a probe, and reports false if nobody has received that. An error says nothing about the
// subscription.
func (in *inbox) count(c *pipeline.Call) bool {
	receivers, isInt := c.Reply.(int64)
	if c.Err != nil || !isInt {
		return true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	before := in.counted
	in.counted = receivers > 0
	if in.counted && !before {
		for _, l := range in.listeners {
			if in.confirmed[l.channel] {
				l.news(false)
			}
		}
	}
	return in.counted
}

func (in *inbox) hear() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
}

// useless reports whether the subscription has been silent for too long, or nobody has listened for a while.
func (in *inbox) useless() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return time.Since(in.heard) > inboxProbe*5/2 || len(in.listeners) == 0 && time.Since(in.idle) >= inboxLinger
}

func (in *inbox) subscribed(channel string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
	if channel == in.name {
		in.confirmed[channel] = true
		in.change()
	}
	for _, l := range in.listeners {
		if l.channel == channel {
			in.confirmed[channel] = true
			if in.counted {
				l.news(false)
			}
		}
	}
}

func (in *inbox) message(channel, payload string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
	id := channel
	if channel == in.name {
		id = payload // of probes and of waiters that have left nobody listens to
	}
	if l, ok := in.listeners[id]; ok && l.channel == channel {
		l.news(true)
	}
}
