package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/redis/node"
)

// QuorumError says why a majority of the nodes did not agree, and what each node said. It matches, by errors.Is,
//
//   - [locker.ErrHeld] if enough nodes answered, and others hold the lock or competed for it;
//   - [locker.ErrNoQuorum] and [locker.ErrUnavailable] if too few answered in time, or too many rest; see [Guard];
//   - [locker.ErrForeignKey] if so many nodes have something else under the key that the others make no majority;
//   - [locker.ErrInvalid] if so many nodes have clients with another restart guard that the others make no majority.
//
// It does not match the error of a single vote: one that says "held", among four nodes that are down, is not a holder.
type QuorumError struct {
	Op    string // "acquire", "extend", "verify", "release" or "raise tokens"
	Need  int    // how many nodes make a majority
	Votes []Vote // of every node, in the order of the configuration
	cause error
	// raising says that the votes are those of the second round, in which nodes raise their counters to the token.
	raising bool
}

// Vote is what one node said.
type Vote struct {
	Node    string // its name
	Outcome Outcome
	Err     error // why it has not agreed; nil if the Outcome is Agreed, NoAnswer, NotHeard or NotAsked
}

// Outcome is a node's vote in one word.
type Outcome string

// The outcomes of a node in an operation.
const (
	Agreed    Outcome = "agreed"    // it has granted, extended, verified or released
	Held      Outcome = "held"      // somebody else has the lock, or it is not this lease's any more
	Failed    Outcome = "failed"    // it was unreachable, or refused; Err says which
	NoAnswer  Outcome = "no answer" // it did not answer in time
	NotHeard  Outcome = "not heard" // the other nodes had decided before it could answer: it may be in order
	NotAsked  Outcome = "not asked" // the decision came before it was asked, or it never had this lock
	Duplicate Outcome = "duplicate" // it is the same server as another node, and does not vote
	Resting   Outcome = "resting"   // it may have forgotten locks, and grants none for a while; see [Guard]
	Ahead     Outcome = "ahead"     // it granted with a counter past the token, too late to prove anything in verify
)

const (
	opAcquire = "acquire"
	opExtend  = "extend"
	opVerify  = "verify"
	opRelease = "release"
)

// quorumError returns the error of op. vote returns what a node has said.
func (b *majority) quorumError(op string, cause error, vote func(i int) (Outcome, error)) *QuorumError {
	n := len(b.names)
	e := &QuorumError{Op: op, Need: n/2 + 1, Votes: make([]Vote, n), cause: cause}
	for i := range e.Votes {
		outcome, err := vote(i)
		e.Votes[i] = Vote{b.names[i], outcome, err}
	}
	return e
}

// faultOf returns the Outcome of a node that was asked and has not agreed. err is nil if it has not answered.
func faultOf(err error) Outcome {
	switch {
	case err == nil:
		return NoAnswer
	case isHeld(err):
		return Held
	case errors.As(err, new(*node.SameServer)):
		return Duplicate
	case errors.As(err, new(*locker.GracePeriodError)):
		return Resting
	case errors.Is(err, errAhead):
		return Ahead
	default:
		return Failed
	}
}

// Error returns the cause, how many nodes agreed, and what the others said.
func (e *QuorumError) Error() string {
	var b strings.Builder
	agreed := 0
	for _, v := range e.Votes {
		if v.Outcome == Agreed {
			agreed++
		}
	}
	round := ""
	if e.raising {
		round = ", second round"
	}
	fmt.Fprintf(&b, "%v: %s%s: %d of %d nodes agreed, ", e.cause, e.Op, round, agreed, len(e.Votes))
	if agreed < e.Need {
		fmt.Fprintf(&b, "%d are needed", e.Need)
	} else {
		b.WriteString("but not in time")
	}
	sep := ": "
	for _, v := range e.Votes {
		if v.Outcome == Agreed {
			continue
		}
		text := sep + v.Node + " " + string(v.Outcome)
		switch v.Outcome {
		case Failed, Duplicate:
			why := strings.TrimPrefix(v.Err.Error(), locker.ErrUnavailable.Error()+": ")
			text += " (" + strings.TrimPrefix(why, v.Node+": ") + ")"
		case Resting:
			text = sep + v.Err.Error()
		}
		b.WriteString(text)
		sep = "; "
	}
	return b.String()
}

// Unwrap returns the cause. The errors of the nodes are in Votes.
func (e *QuorumError) Unwrap() error { return e.cause }

// noQuorum is the cause of a QuorumError if too few nodes have answered.
type noQuorum struct{}

func (noQuorum) Error() string { return locker.ErrNoQuorum.Error() }

// Is makes noQuorum match ErrUnavailable as well. To a caller that does not care how many nodes there are, the store is
// down.
func (noQuorum) Is(target error) bool {
	return target == locker.ErrNoQuorum || target == locker.ErrUnavailable
}

func isHeld(err error) bool { return errors.Is(err, locker.ErrHeld) }

// rest returns after how long enough nodes grant locks, if too many of them rest now. It returns 0 if that is not
// known.
func (e *QuorumError) rest() time.Duration {
	var rests []time.Duration
	missing := e.Need
	for _, v := range e.Votes {
		var resting *locker.GracePeriodError
		switch {
		case errors.As(v.Err, &resting):
			rests = append(rests, resting.Remaining)
		case v.Outcome == Agreed, v.Outcome == Held, v.Outcome == NotAsked:
			missing--
		}
	}
	if missing < 1 || missing > len(rests) {
		return 0
	}
	slices.Sort(rests)
	return rests[missing-1]
}
