package node

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// nodeError is a fault of one node, by name.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }

// Unwrap hides the context errors of drivers and dialers: whether the caller's context ended is not theirs to say.
func (e *nodeError) Unwrap() error {
	if errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded) {
		return nil
	}
	return e.err
}

// errGivenUp is the answer to an attempt that arrived after its own clean-up. Nobody waits for it.
var errGivenUp = errors.New("the attempt was given up before it arrived")

// decodeVote reads the reply of acquire.lua.
func decodeVote(reply drivers.Reply) (Vote, error) {
	if e, ok := reply.(drivers.ServerError); ok {
		return Vote{}, e
	}
	switch n, _ := reply.(int64); {
	case n > 0:
		return Vote{Granted: true, Counter: uint64(n)}, nil
	case n == -1:
		return Vote{}, errGivenUp
	case n == -2:
		return Vote{}, locker.ErrForeignKey
	case n < -2 && n >= -2-maxNumber:
		return Vote{}, &Alias{int(-2 - n)}
	}
	r, _ := reply.([]drivers.Reply)
	integer := func(i int) int64 {
		if i < len(r) {
			if n, ok := r[i].(int64); ok {
				return n
			}
		}
		return math.MinInt64
	}
	if integer(0) == 0 && len(r) == 4 {
		owner, _ := r[3].(string)
		return Vote{
			Counter: uint64(max(0, integer(2))),
			Owner:   owner,
		}, &locker.HeldError{Remaining: span(integer(1))}
	}
	return Vote{}, unexpected(reply)
}

// Alias is why the answer of a server is not that of the node that was asked: what it has is the same attempt's, as another of
// its nodes. Of an acquisition it says that nothing was done, of a release that the lock was deleted.
type Alias struct{ Number int }

// maxNumber is more than any node's.
const maxNumber = 64

func (e *Alias) Error() string { return fmt.Sprintf("the same server as node %d", e.Number) }

// What releases add to their reply.
const (
	again  = 8  // the next owner was not found yet among many that are dead
	waited = 16 // others wait for the lock, of which one was told
)

// has reports whether the reply of a release has one of these added.
func has(reply drivers.Reply, flag int64) bool {
	r, isInt := reply.(int64)
	return isInt && r&flag != 0
}

// decodeOwned reads the reply of raise.lua, extend.lua and release.lua: 0, 3 and 4 mean that the lock is not the caller's.
func decodeOwned(reply drivers.Reply) error {
	switch r := reply.(type) {
	case drivers.ServerError:
		return r
	case int64:
		switch k := r / 32; r % 32 &^ (again | waited) {
		case 0, 1, 3:
			if 0 < k && k <= maxNumber {
				return &Alias{int(k)}
			}
		}
		switch r &^ (again | waited) {
		case 0:
			return errGone
		case 3:
			return &locker.NotHeldError{Reason: locker.LostSuperseded}
		case 4:
			return &locker.NotHeldError{Reason: locker.LostTakenOver}
		case 1, 2:
			return nil
		}
	}
	return unexpected(reply)
}

var errGone = &locker.NotHeldError{Reason: locker.LostGone}

// unexpected reports a reply of a shape that the scripts do not have: a driver that does not normalise, or a proxy that
// answers for Redis. Its text is not shown, for it may contain a token.
func unexpected(reply drivers.Reply) error {
	return fmt.Errorf("unexpected reply of type %T: not from the lock script, or not normalised by the driver", reply)
}

func isNotSent(err error) bool { return errors.Is(err, drivers.ErrNotSent) }

// refusals are error codes that Redis gives instead of executing a command.
var refusals = map[string]bool{
	"NOSCRIPT": true, "READONLY": true, "LOADING": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "MOVED": true,
	"ASK": true, "TRYAGAIN": true, "CROSSSLOT": true, "NOAUTH": true, "WRONGPASS": true, "OOM": true, "MISCONF": true,
	"NOREPLICAS": true, "BUSY": true,
}

// known reports whether an error decoded from a reply leaves no doubt that the attempt has set no key. Codes not in
// refusals are treated as doubtful, NOPERM among them: a script may be stopped in the middle.
func known(err error) bool {
	var e drivers.ServerError
	if errors.As(err, &e) {
		return refusals[e.Code()]
	}
	if errors.As(err, new(*Alias)) {
		return true
	}
	return errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrForeignKey) || errors.Is(err, errGivenUp)
}

// isDoubtful reports whether an error of a request, or decoded from its reply, leaves it open whether the request has been
// executed, or may be yet.
func isDoubtful(err error) bool { return err != nil && !isNotSent(err) && !known(err) }
