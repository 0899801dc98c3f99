package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/passing"
)

// The reasons for which nothing can be resumed. A lock that is to be had nevertheless has to be acquired, and the work
// that it protects looked at: somebody may have gone on with it.
var (
	// ErrText matches what is not a Text, or one of another version. It matches [locker.ErrInvalid], too.
	ErrText = fmt.Errorf("%w: the text of a lease cannot be used", locker.ErrInvalid)

	// ErrUsed says that another owner has the lock: the text was used, or the lock had ended and somebody else has got
	// it. It matches [locker.ErrNotHeld], too.
	ErrUsed = fmt.Errorf("%w for this text: another owner has the lock, because the text was used before, or came too "+
		"late; wait for the lock with Lock if the work is still to be done", locker.ErrNotHeld)

	// ErrEnded says that nobody has the lock: its TTL is over, or whoever used the text has unlocked it, or it was
	// exported from another store, or under another prefix. It matches [locker.ErrNotHeld], too.
	ErrEnded = fmt.Errorf("%w for this text: nobody has the lock any more, because its TTL is over, it was resumed and "+
		"unlocked, or it is in another store; acquire it with Lock if the work is still to be done", locker.ErrNotHeld)
)

var (
	errForgotten = errors.New("a middleware has not passed on the context of its caller, so the lock was released")
	errNotAsked  = errors.New("a middleware has not passed on the context of its caller, so nothing was resumed")
	errForeign   = fmt.Errorf("the lease is not of a Client, or middleware hides it: %w", errors.ErrUnsupported)
)

// Export ends lease, and returns a text that stands for its lock. The lock stays taken for ttl from then on, or for the
// TTL of the lease if that is 0, and nobody renews it. Whoever calls [Resume] with the text within that time has the
// lock again. Otherwise it ends. If the lock was to stay taken for longer because of MinHold, it stays for that long.
//
// When Export has returned a Text, no request of this process changes the lock any more, whenever it arrives, and
// neither does its Close. There is an error beside the Text if a middleware has one of its own. If there is no Text,
// and the error does not say that nothing was done, the lease has ended. The lock ends with its TTL or with ttl at the
// latest, and Unlock of the lease tries to release it, whatever has become of the Export. Like Unlock, Export works
// with a context that has ended, and waits for a second at most. Errors match:
//
//   - errors.ErrUnsupported, if the store cannot do it, or if the lease is a permit, a shared lock, a writer's lock of
//     package rwlock, the term of an election, a tick, or a [locker.AllLease]. Nothing was done, unless it is the store
//     itself that refuses the request; Err of the lease tells.
//   - [locker.ErrInvalid], if ttl is not one for a lease. Nothing was done, unless it is the store that refuses it,
//     which may have a restart guard.
//   - [locker.ErrLost] or [locker.ErrUnlocked], if the lease had ended, or was lost before the request was sent.
//   - [locker.ErrUnavailable], if it is not known whether the store has done it.
//
// To middleware, and in its metrics and logs, the call is an Unlock.
func Export(ctx context.Context, lease locker.Lease, ttl time.Duration) (Text, error) {
	of, ok := locker.LeaseAs[interface{ Exportable() error }](lease)
	_, several := locker.LeaseAs[*locker.AllLease](lease)
	var err error
	switch {
	case several:
		err = errSeveral
	case !ok:
		err = errForeign
	case ttl != 0 && (ttl < locker.MinTTL || ttl > locker.MaxTTL):
		err = fmt.Errorf("%w: TTL %v is not between %v and %v", locker.ErrInvalid, ttl, locker.MinTTL, locker.MaxTTL)
	default:
		err = of.Exportable()
	}
	if err != nil {
		return Text{}, about("export", lease.Key(), err)
	}
	x := &passing.Export{Of: of, To: passing.NewOwner(), TTL: ttl}
	err = lease.Unlock(x.With(ctx))
	var text Text
	switch {
	case x.Passed():
		text = newText(x.To, lease.Key())
	case err == nil:
		err = errForgotten
	}
	if err != nil {
		err = about("export", lease.Key(), err)
	}
	return text, err
}

var errSeveral = fmt.Errorf("several locks at once cannot be passed on, export a lease of each: %w",
	errors.ErrUnsupported)

// Resume makes one attempt to acquire the lock that text stands for, and returns its lease, with the options opts. They
// are those of TryLock, and none of them comes from the lease that was exported: TTL, label, MinHold and MaxHold are
// those of this call. The lease has a fencing token greater than that of the lease that was exported.
//
// At most one lease comes of a text, whoever has it. If it is not known whether the store has done it, the attempt is
// undone: the text is used up then, nobody may have the lock, and it ends with its TTL at the latest. Errors match:
//
//   - [ErrText], [ErrUsed] or [ErrEnded].
//   - errors.ErrUnsupported, if the store cannot do it, or if l is that of a semaphore or of shared locks.
//   - [locker.ErrUnavailable], if it is not known whether the store has done it. The text may be used up.
//   - [locker.ErrDraining] and [locker.ErrClosed]. The text can still be used, by another Client, unless the error
//     matches ErrUnavailable as well: the request was under way when that began, and what it got was given up.
//   - [locker.ErrInvalid], if an option cannot be used.
//   - ctx's error, if ctx ended.
//
// To middleware, and in its metrics and logs, the call is a TryLock.
func Resume(ctx context.Context, l locker.Locker, text Text, opts ...locker.Option) (locker.Lease, error) {
	owner, key := text.parts()
	if owner == "" {
		return nil, about("resume", "", fmt.Errorf("%w: it is empty", ErrText))
	}
	r := &passing.Resumption{Key: key, From: owner}
	lease, err := l.TryLock(r.With(ctx), key, opts...)
	var taken *locker.NotHeldError
	switch {
	case err == nil && !r.Granted():
		_ = lease.Unlock(ctx)
		err = errNotAsked
	case err == nil:
		return lease, nil
	case errors.Is(err, locker.ErrClosed) && r.Sent():
		err = fmt.Errorf("%w, so the text may be used up: %w", locker.ErrUnavailable, reason(err))
	case errors.As(err, &taken) && taken.Reason == locker.LostTakenOver:
		err = ErrUsed
	case errors.Is(err, locker.ErrNotHeld):
		err = ErrEnded
	}
	return nil, about("resume", key, err)
}

// about returns err with another operation in it.
func about(op, key string, err error) error { return &locker.Error{Op: op, Key: key, Err: reason(err)} }

// reason returns err without the operation that it names. What a middleware has added stays.
func reason(err error) error {
	if of, ok := err.(*locker.Error); ok { //nolint:errorlint // nothing around it may be dropped
		return of.Err
	}
	return err
}
