package node

import (
	"math/rand/v2"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

// inboxProbe is how often the inbox publishes a message to itself. A subscription that has received nothing for two
// and a half probes is dead, whatever its connection says. So is a subscription whose probe, according to the
// server, nobody has received.
const inboxProbe = 4 * time.Second

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

// send publishes a message on the own channel if the server has confirmed that channel. Before, nobody would receive
// it. It sends nothing while a probe is unanswered.
func (p *prober) send() {
	p.in.mu.Lock()
	confirmed := p.in.confirmed[p.in.name]
	p.in.mu.Unlock()
	if !confirmed || p.unanswered {
		return
	}
	p.asked, p.unanswered = true, true
	c := &pipeline.Call{Command: script.Publish(p.in.name, "")}
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

// useless reports whether the subscription has been silent for too long, or has had no listeners for inboxLinger.
func (in *inbox) useless() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return time.Since(in.heard) > inboxProbe*5/2 || len(in.listeners) == 0 && time.Since(in.idle) >= inboxLinger
}
