package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// voteTrace reports the votes of one operation to the Trace of its caller, if there is one.
type voteTrace struct {
	b     *backend
	voted func(lockertrace.Vote)
	op    string
	begun []time.Time // when each node was asked; nil: there is no Trace
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

// answer reports what node i has said before the decision.
func (t *voteTrace) answer(i int, err error) { t.tell(i, lockertrace.Vote{Err: err}) }

// late reports what node i has said after the decision. It does not report the errors that Close causes.
func (t *voteTrace) late(i int, err error) {
	if !t.b.closed() {
		t.tell(i, lockertrace.Vote{Err: err, Late: true})
	}
}

// silent reports that node i has not answered before the decision.
func (t *voteTrace) silent(i int) { t.tell(i, lockertrace.Vote{Err: errSilent, Pending: true}) }

func (t *voteTrace) tell(i int, vote lockertrace.Vote) {
	if t.begun != nil {
		vote.Node, vote.Op, vote.Duration = t.b.names[i], t.op, time.Since(t.begun[i])
		t.voted(vote)
	}
}

// errSilent is the error that a Trace gets for a node that has not answered before the decision.
var errSilent = fmt.Errorf("%w: no answer before the decision", locker.ErrUnavailable)
