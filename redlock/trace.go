package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// voteTrace tells the Trace of a call, if it wants to know, how the nodes vote on one operation.
type voteTrace struct {
	b     *backend
	voted func(lockertrace.Vote)
	op    string
	begun []time.Time // when each node was asked; nil: nobody wants to know
}

func (b *backend) trace(ctx context.Context, op string) voteTrace {
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

// answer is told what node i has said before the decision.
func (t *voteTrace) answer(i int, err error) { t.tell(i, lockertrace.Vote{Err: err}) }

// late is told what node i has said after it. That the backend is being closed is not the node's word.
func (t *voteTrace) late(i int, err error) {
	if !t.b.closed() {
		t.tell(i, lockertrace.Vote{Err: err, Late: true})
	}
}

// silent is told that node i has said nothing before the decision.
func (t *voteTrace) silent(i int) { t.tell(i, lockertrace.Vote{Err: errSilent, Pending: true}) }

func (t *voteTrace) tell(i int, vote lockertrace.Vote) {
	if t.begun != nil {
		vote.Node, vote.Op, vote.Duration = t.b.names[i], t.op, time.Since(t.begun[i])
		t.voted(vote)
	}
}

// errSilent is what a Trace is told of a node that was given up on.
var errSilent = fmt.Errorf("%w: no answer before the decision", locker.ErrUnavailable)
