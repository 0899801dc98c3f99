package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
)

// votes tells the Trace of a call, if it wants to know, how the nodes vote on one operation.
type votes struct {
	b     *backend
	voted func(locker.Vote)
	op    string
	begun []time.Time // when each node was asked; nil: nobody wants to know
}

func (b *backend) votes(ctx context.Context, op string) votes {
	v := votes{b: b, op: op}
	if t := locker.TraceFrom(ctx); t != nil && t.Voted != nil {
		v.voted, v.begun = t.Voted, make([]time.Time, len(b.names))
	}
	return v
}

func (v *votes) ask(i int) {
	if v.begun != nil {
		v.begun[i] = time.Now()
	}
}

// answer is told what node i has said before the decision.
func (v *votes) answer(i int, err error) { v.tell(i, locker.Vote{Err: err}) }

// late is told what node i has said after it. That the backend is being closed is not the node's word.
func (v *votes) late(i int, err error) {
	if !v.b.closed() {
		v.tell(i, locker.Vote{Err: err, Late: true})
	}
}

// silent is told that node i has said nothing before the decision.
func (v *votes) silent(i int) { v.tell(i, locker.Vote{Err: errSilent, Pending: true}) }

func (v *votes) tell(i int, vote locker.Vote) {
	if v.begun != nil {
		vote.Node, vote.Op, vote.Duration = v.b.names[i], v.op, time.Since(v.begun[i])
		v.voted(vote)
	}
}

// errSilent is what a Trace is told of a node that was given up on.
var errSilent = fmt.Errorf("%w: no answer before the decision", locker.ErrUnavailable)
