package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/lockertrace"
)

// fanout asks the nodes for an operation. It collects the calls that come back, and leaves the calls that nobody waits
// for any longer. The operation decides what the answers mean, and how long to wait for them.
type fanout struct {
	b     *majority
	start time.Time
	end   time.Time // when the operation's time is over; zero after overdue
	// lingers is until when an operation that is decided waits for more answers. Zero: it does not wait yet.
	lingers time.Time
	// ready has room for two calls of every node. No operation makes or hears of more.
	ready chan *node.Call
	open  nodeSet // the tags of the calls that have not come back
}

// asker is an operation of a fanout: an acquisition, a lease update or an inquiry.
type asker interface {
	// until returns when the operation stops waiting for the next answer. Zero means that it needs no more answers.
	until() time.Time
	// overdue is called when no answer has come by until. It must change what until returns.
	overdue()
	// answer is called with each call that comes back.
	answer(c *node.Call)
	// leave is called for each open call, by its tag, when nobody waits for it any longer.
	leave(tag int)
}

func (b *majority) fanout(limit time.Duration) fanout {
	now := time.Now()
	return fanout{b: b, start: now, end: now.Add(limit), ready: make(chan *node.Call, 2*len(b.nodes))}
}

// collect passes answers to op until op needs no more, ctx ends, or the backend is closed.
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
		var c *node.Call
		select {
		case c = <-f.ready:
		case <-timer.C:
			set = time.Time{}
			// After a stall of the process, answers and the end of the wait are ready at the same time. The answers
			// count.
			if len(f.ready) == 0 {
				if op.until().Equal(until) {
					op.overdue()
				}
				continue
			}
			c = <-f.ready
		case <-ctx.Done():
			return
		case <-f.b.closing:
			return
		}
		f.open &^= only(c.Tag)
		op.answer(c)
	}
}

// linger returns until when an operation that is decided waits for the nodes in late: for as long as they are expected
// to take, from the first time that linger is called. If that is no time at all, linger returns zero, unless an answer
// has come that has to be seen.
func (f *fanout) linger(late nodeSet, come bool) time.Time {
	limit := f.b.health.expected(late)
	if limit == 0 && !come {
		return time.Time{}
	}
	if f.lingers.IsZero() {
		f.lingers = time.Now().Add(limit)
	}
	return f.lingers
}

// letGo has op leave the calls that have not come back.
func (f *fanout) letGo(op asker) {
	f.open.each(func(tag int) {
		f.open &^= only(tag) // first, because a hook may panic, and then the others are left
		op.leave(tag)
	})
}

// overdue ends the operation's time. It is the overdue of operations that have nothing else to do then.
func (f *fanout) overdue() { f.end = time.Time{} }

// voteTrace reports the votes of one operation to the Trace of its caller, if there is one.
type voteTrace struct {
	b     *majority
	voted func(lockertrace.Vote)
	op    string
	begun []time.Time // when each node was asked; nil: there is no Trace
	// mute says that a hook has panicked. Nothing is reported but votes that come late.
	mute bool
}

func (b *majority) trace(ctx context.Context, op string) voteTrace {
	t := voteTrace{b: b, op: op}
	if of := lockertrace.From(ctx); of != nil && of.Voted != nil {
		t.voted, t.begun = of.Voted, make([]time.Time, len(b.names))
	}
	return t
}

func (t *voteTrace) ask(i int) {
	if t.begun != nil {
		t.begun[i] = time.Now()
	}
}

// answer reports what node i has said before the decision.
func (t *voteTrace) answer(i int, err error) {
	if !t.mute {
		t.tell(i, lockertrace.Vote{Err: err})
	}
}

// late reports what node i has said after the decision. It does not report the errors that Close causes.
func (t *voteTrace) late(i int, err error) {
	if !t.b.closed() {
		t.tell(i, lockertrace.Vote{Err: err, Late: true})
	}
}

// silent reports that node i has not answered before the decision.
func (t *voteTrace) silent(i int) {
	if !t.mute {
		t.tell(i, lockertrace.Vote{Err: errSilent, Pending: true})
	}
}

func (t *voteTrace) tell(i int, vote lockertrace.Vote) {
	if t.begun != nil {
		vote.Node, vote.Op, vote.Duration = t.b.names[i], t.op, time.Since(t.begun[i])
		t.voted(vote)
	}
}

// errSilent is the error that a Trace gets for a node that has not answered before the decision.
var errSilent = fmt.Errorf("%w: no answer before the decision", locker.ErrUnavailable)
