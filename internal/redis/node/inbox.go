package node

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
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
	// inboxProbe is how often the inbox publishes a message to itself. A subscription that has received nothing for two
	// and a half probes is dead, whatever its connection says. So is a subscription whose probe, according to the
	// server, nobody has received.
	inboxProbe = 4 * time.Second
	// maxShards is how many slots of a Redis Cluster a Client may have subscriptions for at a time. Each is a
	// connection. While there are more slots with waiters, those of the other slots poll.
	maxShards = 64
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
	// begun says that a new subscription has the channel already. A second confirmation would wake all waiters.
	begun    bool
	pipeline *pipeline.Pipeline // for probes
	timeout  time.Duration      // for opening a subscription
	channel  string             // on which the messages come

	mu sync.Mutex
	// listeners has the listeners by the payload that they wait for. They must not block. They are called with true when
	// a message has come, and with false when the channel is live.
	listeners map[string]func(told bool)
	confirmed bool // the server has confirmed the channel
	// The server that commands go to has counted the subscription when it was last asked.
	counted bool
	heard   time.Time     // when the last message or confirmation came
	idle    time.Time     // since when there are no listeners
	running chan struct{} // closed when run has ended; nil if run is not running
	// changed has room for one. It receives when there is another listener, or the channel is confirmed.
	changed chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
}

func newInbox(p *pipeline.Pipeline, timeout time.Duration, channel string) *inbox {
	in := &inbox{
		pipeline: p, timeout: timeout, channel: channel,
		listeners: make(map[string]func(bool)), changed: make(chan struct{}, 1),
	}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	return in
}

// live reports whether messages arrive, as far as is known.
func (in *inbox) live() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.counted && in.confirmed
}

// expect has news called for messages whose payload is id, until ignore(id) is called. If the channel is live already,
// news is not called for that.
func (in *inbox) expect(id string, news func(told bool)) {
	if in.subscribe == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.listeners[id] = news
	if in.counted && in.confirmed {
		return // the usual case under contention
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
	if _, ok := in.listeners[id]; !ok {
		return
	}
	if delete(in.listeners, id); len(in.listeners) == 0 {
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
			if in.live() { // the subscription worked
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
	in.confirmed, in.counted = false, false
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

// serve subscribes to the channel and sends probes. It returns when the subscription is lost or silent, when the
// server does not count it, when there have been no listeners for a while, or when the node is closed.
func (in *inbox) serve(sub drivers.Subscription, lost <-chan struct{}) {
	p := in.newProber()
	defer p.tick.Stop()
	in.hear()
	if !in.begun && sub.Subscribe(in.channel) != nil {
		return
	}
	for {
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

func (in *inbox) subscribed(channel string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
	if channel != in.channel {
		return
	}
	in.confirmed = true
	in.change()
	if in.counted {
		in.tell()
	}
}

// tell tells all listeners that the channel is live. Call with the mutex held.
func (in *inbox) tell() {
	for _, news := range in.listeners {
		news(false)
	}
}

func (in *inbox) message(channel, payload string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
	// Nobody listens for the payload of a probe, or of a waiter that has left.
	if news := in.listeners[payload]; news != nil && channel == in.channel {
		news(true)
	}
}

// prober sends the probes of one subscription. Only the goroutine of the inbox uses it.
//
// Probes that fail are repeated soon, because waiters poll until one is counted: after a restart of the server, the
// first probe often travels over an old connection. While probes fail, the pauses double.
type prober struct {
	in         *inbox
	tick       *time.Ticker // the next probe is due
	answers    chan *pipeline.Call
	asked      bool          // a probe was sent
	unanswered bool          // and there is no answer to it yet
	due        bool          // tick has called for a probe since the last answer
	pause      time.Duration // before the next probe, after one that failed; 0: the last one was answered
}

func (in *inbox) newProber() *prober {
	return &prober{in: in, tick: time.NewTicker(inboxProbe), answers: make(chan *pipeline.Call, 1)}
}

// send publishes a message on the channel if the server has confirmed that channel. Before, nobody would receive
// it. It sends nothing while a probe is unanswered.
func (p *prober) send() {
	p.in.mu.Lock()
	confirmed := p.in.confirmed
	p.in.mu.Unlock()
	if !confirmed || p.unanswered {
		return
	}
	p.asked, p.unanswered = true, true
	c := &pipeline.Call{Command: script.Publish(p.in.channel, "")}
	p.in.pipeline.Submit(c, func() { p.answers <- c })
}

// sendDue is send when tick calls for a probe.
func (p *prober) sendDue() {
	p.tick.Reset(inboxProbe) // counts has shortened it
	p.due = true
	p.send()
}

// counts reads the answer to a probe. It returns false if nobody has received the probe. An error, or a refusal, says
// nothing about the subscription.
func (p *prober) counts(c *pipeline.Call) bool {
	p.unanswered = false
	p.asked = !isNotSent(c.Err)
	receivers, isInt := c.Reply.(int64)
	refusal, _ := c.Reply.(drivers.ServerError)
	switch failed := c.Err != nil || !isInt && !refusedForGood(refusal); {
	case !failed:
		p.pause = 0
	case p.due || p.pause == 0: // otherwise a new listener has caused a probe before it was due
		p.pause = min(max(2*p.pause, inboxMinPause), inboxMaxPause)
		p.tick.Reset(p.pause/2 + rand.N(p.pause/2))
	}
	p.due = false
	return c.Err != nil || !isInt || p.in.count(receivers)
}

// count records how many subscribers have received a probe, and reports whether there were any.
func (in *inbox) count(receivers int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	before := in.counted
	in.counted = receivers > 0
	if in.counted && in.confirmed && !before {
		in.tell()
	}
	return in.counted
}

func (in *inbox) hear() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.heard = time.Now()
}

// useless reports whether the subscription has been silent for too long, or has had no listeners for inboxLinger.
func (in *inbox) useless() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return time.Since(in.heard) > inboxProbe*5/2 || len(in.listeners) == 0 && time.Since(in.idle) >= inboxLinger
}

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
