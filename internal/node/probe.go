package node

import (
	"math/rand/v2"
	"time"

	"github.com/golocker/locker/internal/pipeline"
	"github.com/golocker/locker/internal/script"
)

// inboxProbe is how often the inbox publishes a message to itself. A subscription that has received nothing for two
// and a half probes is dead, whatever its connection says. So is a subscription whose probe, according to the
// server, nobody has received.
const inboxProbe = 4 * time.Second

// probe publishes a message on the own channel if the server has confirmed that channel. Before, nobody would receive
// it. It reports whether it has sent the message. The outcome comes through answers, which must have room for it.
func (in *inbox) probe(answers chan<- *pipeline.Call) bool {
	in.mu.Lock()
	confirmed := in.confirmed[in.name]
	in.mu.Unlock()
	if confirmed {
		c := &pipeline.Call{Command: script.Publish(in.name, "")}
		in.pipeline.Submit(c, func() { answers <- c })
	}
	return confirmed
}

// reprobe sets tick to the repetition of a probe that has failed, and returns the pause before it. Probes are repeated
// soon, because waiters poll until one is counted: after a restart of the server, the first probe often travels over an
// old connection. While probes fail, the pauses double. last is the pause before the probe, or 0 if it is the first one
// that has failed.
func reprobe(tick *time.Ticker, last time.Duration) (pause time.Duration) {
	pause = min(max(2*last, inboxMinPause), inboxMaxPause)
	tick.Reset(pause/2 + rand.N(pause/2))
	return pause
}

// count reads the answer to a probe. It returns false if nobody has received the probe. An error says nothing about the
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

// useless reports whether the subscription has been silent for too long, or has had no listeners for inboxLinger.
func (in *inbox) useless() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return time.Since(in.heard) > inboxProbe*5/2 || len(in.listeners) == 0 && time.Since(in.idle) >= inboxLinger
}
