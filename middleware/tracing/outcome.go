package tracing

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
)

// op is a method of Locker or Lease.
type op int

const (
	opLock op = iota
	opTryLock
	opTryLockMany
	opExtend
	opUnlock
)

// ops has the names of the operations, which are the values of the attribute locker.operation.
var ops = [...]string{"lock", "trylock", "trylockmany", "extend", "unlock"}

// spans has the names of the spans of the operations.
var spans = [len(ops)]string{"locker.lock", "locker.lock", "locker.lock", "locker.extend", "locker.unlock"}

// unsupported is the outcome of TryLockMany if the locks have to be acquired one after the other.
const unsupported = "unsupported"

// ofCall returns the outcome of a call of Lock, TryLock, TryLockMany or Extend, which is done if the call succeeded.
// kind is the value of error.type. It is empty for contention and for the end of the caller's context, which are not
// errors.
//
// If the deadline of the context passed while the store did not answer, that is an error. Otherwise a store that hangs
// would not be noticed where calls have deadlines. If the caller cancelled the context, that is not an error, because
// the store may have been about to answer.
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
	case errors.Is(err, errors.ErrUnsupported):
		return unsupported, ""
	}
	return "error", kindOf(err)
}

// ofUnlock is ofCall for Unlock. Unlock does not depend on the context, so a missing answer is always an error.
func ofUnlock(err error) (outcome, kind string) {
	switch {
	case err == nil:
		return "unlocked", ""
	case errors.Is(err, locker.ErrUnlocked):
		return "already_unlocked", ""
	}
	return "error", kindOf(err)
}

// kindOf returns the value of error.type for the first sentinel error that err matches. Special errors come before the
// more general ones that they also match.
func kindOf(err error) string {
	for _, k := range []struct {
		sentinel error
		kind     string
	}{
		{locker.ErrNoQuorum, "no_quorum"},
		{locker.ErrNotReplicated, "not_replicated"},
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

// ofVote returns the outcome of a vote, and the value of error.type.
func ofVote(v lockertrace.Vote) (outcome, kind string) {
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

// describe returns a text about err for the status of a span. The text must not contain any of keys, because these are
// recorded only with [WithKey]. describe therefore leaves out the text of [locker.Error]. If the rest contains one of
// keys as well, it returns kindOf(err).
func describe(err error, keys ...string) string {
	var e *locker.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	text := err.Error()
	if slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(text, key) }) {
		return kindOf(err)
	}
	return text
}
