package redlock

import (
	"errors"
	"slices"
	"time"

	"github.com/golocker/locker"
)

// split reports whether the vote was split: this attempt has some nodes, and nobody has a majority.
func (a *acquisition) split() bool {
	_, most := a.owners()
	return a.election.granted != 0 && 0 < most && most < a.election.need
}

// astray reports whether node i is wrong about the owner with the most nodes. Either the lock was free there, granted
// or not, although somebody has a majority, or it belongs to another owner there.
func (a *acquisition) astray(i int) bool {
	owners, most := a.owners()
	switch v := &a.ballots[i].vote; {
	case v.Granted, errors.As(v.Err, new(*locker.RestingError)):
		return most >= a.election.need
	case isHeld(v.Err), errors.Is(v.Err, locker.ErrForeignKey):
		return owners[v.Owner] < most
	}
	return false
}

// owners returns how many nodes each owner has, and how many the owner with the most nodes has.
func (a *acquisition) owners() (owners map[string]int, most int) {
	owners = map[string]int{}
	for i := range a.ballots {
		if v := &a.ballots[i].vote; isHeld(v.Err) {
			owners[v.Owner]++
			most = max(most, owners[v.Owner])
		}
	}
	return owners, most
}

func (a *acquisition) maxCounter() (c uint64) {
	for i := range a.ballots {
		c = max(c, a.ballots[i].vote.Counter)
	}
	return c
}

// err returns why the acquisition was lost.
func (a *acquisition) err() error {
	if a.b.closed() {
		return locker.ErrClosed
	}
	e := a.b.quorumError(opAcquire, a.cause(), a.vote)
	e.raising = a.election.token != 0
	return e
}

// vote returns what node i has said, in the second round if there was one.
func (a *acquisition) vote(i int) (Outcome, error) {
	switch v := &a.ballots[i].vote; {
	case v.Granted && (a.election.token == 0 || a.election.agreed.has(i)):
		return Agreed, nil
	case v.Granted && a.raises != nil:
		err := a.raises[i].err
		return faultOf(err), err
	case !a.election.asked.has(i):
		return NotAsked, nil
	default:
		return faultOf(v.Err), v.Err
	}
}

// cause returns whether the acquisition was lost to other owners, or because too few nodes have answered.
func (a *acquisition) cause() error {
	n, need := len(a.ballots), a.election.need
	decided := a.election.outcome() == lost // by votes, and not for lack of them
	foreign, mismatched, mismatch := 0, 0, error(nil)
	// How long until each node that is in order can be free. If a node was not needed for the decision, nothing is
	// known of it. It counts as in order if it was in order before.
	var free []time.Duration
	for i := range a.ballots {
		var held *locker.HeldError
		switch v := &a.ballots[i].vote; {
		case v.Granted, v.Err == nil && decided && !a.b.health.isFaulty(i):
			free = append(free, 0)
		case errors.As(v.Err, &held):
			free = append(free, held.Remaining)
		case errors.Is(v.Err, locker.ErrForeignKey):
			foreign++
		case errors.Is(v.Err, locker.ErrInvalid): // another restart guard
			mismatched, mismatch = mismatched+1, v.Err
		}
	}
	slices.Sort(free)
	switch {
	case n-foreign < need:
		return locker.ErrForeignKey
	case n-mismatched < need:
		return mismatch
	case len(free) < need: // too many faults, whoever has the other nodes
		return noQuorum{}
	case a.held == 0 && !a.contested: // nobody else has the lock: votes or raises did not come in time
		return noQuorum{}
	case a.election.asked != allOf(n): // the first node decided for all
		return &locker.HeldError{Remaining: free[len(free)-1], Label: a.holder()}
	default:
		return &locker.HeldError{Remaining: free[need-1], Label: a.holder()}
	}
}

// holder returns the label of the owner with the most nodes.
func (a *acquisition) holder() string {
	owners, most := a.owners()
	for i := range a.ballots {
		var held *locker.HeldError
		if v := &a.ballots[i].vote; errors.As(v.Err, &held) && owners[v.Owner] == most {
			return held.Label
		}
	}
	return ""
}
