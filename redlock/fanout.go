package redlock

import (
	"context"
	"time"

	"github.com/golocker/locker/internal/node"
)

// fanout is how an operation asks the nodes: it sends calls, collects what comes back, and lets go of the calls that
// nobody waits for any longer. What an operation makes of the answers, and how long it waits for them, is its own
// affair.
type fanout struct {
	b     *backend
	start time.Time
	end   time.Time       // of the operation's time; zero when that has been noticed
	ready chan *node.Call // has room for two calls of every node, the most that an operation makes or hears of
	open  nodeSet         // tags of the calls that were sent and have not come back
}

// asker is an operation that a fanout serves: an acquisition, an extension or release, an inspection.
type asker interface {
	// until returns when the operation stops waiting for the next answer, as things stand. Zero: it needs none.
	until() time.Time
	// overdue is called when no answer has come until then. It must change what until returns.
	overdue()
	// answer is called with each call that comes back.
	answer(c *node.Call)
	// leave is called for each open call, by its tag, when nobody waits for it any longer.
	leave(tag int)
}

func (b *backend) fanout(limit time.Duration) fanout {
	now := time.Now()
	return fanout{b: b, start: now, end: now.Add(limit), ready: make(chan *node.Call, 2*len(b.nodes))}
}

// collect gives answers to op until it needs no more, ctx ends, or the backend is being closed.
func (f *fanout) collect(ctx context.Context, op asker) {
	var timer *time.Timer
	var set time.Time // when timer ends; zero when it has ended
	for until := op.until(); !until.IsZero(); until = op.until() {
		if timer == nil {
			timer = time.NewTimer(time.Until(until))
			defer timer.Stop()
		} else if until != set {
			timer.Reset(time.Until(until))
		}
		set = until
		select {
		case c := <-f.ready:
			f.take(c, op)
		case <-timer.C:
			set = time.Time{}
			// A process that was stalled finds answers and the end of its patience at once: the answers count.
			for len(f.ready) > 0 && op.until() == until {
				f.take(<-f.ready, op)
			}
			if op.until() == until {
				op.overdue()
			}
		case <-ctx.Done():
			return
		case <-f.b.closing:
			return
		}
	}
}

func (f *fanout) take(c *node.Call, op asker) {
	f.open &^= only(c.Tag)
	op.answer(c)
}

// letGo has op leave the calls that have not come back.
func (f *fanout) letGo(op asker) {
	f.open.each(op.leave)
	f.open = 0
}

// overdue is what most operations do when their time is up: they stop.
func (f *fanout) overdue() { f.end = time.Time{} }
