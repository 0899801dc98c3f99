package tracing

import (
	"context"
	"errors"
	"strings"

	"github.com/golocker/locker"
)

// op is an operation that users call.
type op int

const (
	opLock op = iota
	opTryLock
	opExtend
	opUnlock
)

// ops are their names, as the attribute locker.operation has them.
var ops = [...]string{"lock", "trylock", "extend", "unlock"}

// spans are the names of their spans.
var spans = [len(ops)]string{"locker.lock", "locker.lock", "locker.extend", "locker.unlock"}

// ofCall says how a call of Lock, TryLock or Extend has ended: as done if it has succeeded. kind is what error.type says, empty
// if that is no error: contention, and the end of the caller's own context.
//
// A context that ran out while the store was silent is a fault, or a store that hangs would go unnoticed wherever calls
// have deadlines, which is where one looks. One that the caller ended says nothing of the store, which may have been
// about to answer.
func ofCall(ctx context.Context, err error, done string) (outcome, kind string) {
	switch {
	case err == nil:
		return done, ""
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return "cancelled", ""
	case errors.Is(err, locker.ErrUnavailable):
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", ""
	case errors.Is(err, locker.ErrHeld):
		return "held", ""
	case errors.Is(err, locker.ErrUnlocked):
		return "already_unlocked", ""
	}
	return "error", kindOf(err)
}

// ofUnlock is ofCall for Unlock, which a context does not end: no answer within its grace is a fault.
func ofUnlock(err error) (outcome, kind string) {
	switch {
	case err == nil:
		return "unlocked", ""
	case errors.Is(err, locker.ErrUnlocked):
		return "already_unlocked", ""
	}
	return "error", kindOf(err)
}

// kindOf is the value of error.type: the first sentinel that err matches, the more special ones before those that they imply.
func kindOf(err error) string {
	for _, k := range []struct {
		sentinel error
		kind     string
	}{
		{locker.ErrNoQuorum, "no_quorum"},
		{locker.ErrUnavailable, "unavailable"},
		{locker.ErrNotHeld, "not_held"},
		{locker.ErrLost, "lost"},
		{locker.ErrClosed, "closed"},
		{locker.ErrInvalid, "invalid"},
		{locker.ErrForeignKey, "foreign_key"},
	} {
		if errors.Is(err, k.sentinel) {
			return k.kind
		}
	}
	return "_OTHER"
}

// ofVote says what a node answered.
func ofVote(v locker.Vote) (outcome, kind string) {
	switch {
	case v.Pending:
		return "pending", ""
	case v.Err == nil:
		return "agreed", ""
	case errors.Is(v.Err, locker.ErrHeld):
		return "held", ""
	case errors.Is(v.Err, locker.ErrNotHeld):
		return "not_held", ""
	}
	return "error", kindOf(v.Err)
}

// describe says in words what has gone wrong, for the status of a span. The key is not to be recorded unless the user says
// so: what [locker.Error] says of it is left out, and all of what contains it, as a backend of somebody else's may write it.
func describe(err error, key string) string {
	var e *locker.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	if text := err.Error(); !strings.Contains(text, key) {
		return text
	}
	return kindOf(err)
}
