package locker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// What an operation can run into. Every error of this module that a caller should react to matches one of these by
// errors.Is, whatever backend and middleware it came through; ctx's own error is matched beside them when the
// caller's context ended.
var (
	// ErrHeld: another owner holds the lock.
	ErrHeld = errors.New("held by another owner")

	// ErrNotHeld: Unlock found that the lock was no longer this lease's. It had expired, or was taken over or away.
	ErrNotHeld = errors.New("no longer held")

	// ErrLost: the lease ended before Unlock. [LostError] says why.
	ErrLost = errors.New("lock lost")

	// ErrUnlocked: the lease was released by Unlock.
	ErrUnlocked = errors.New("already unlocked")

	// ErrNoQuorum: too few nodes of a quorum-based backend answered in time. Such an error matches ErrUnavailable, too,
	// so that code which does not care how many nodes there are has one thing to check.
	ErrNoQuorum = errors.New("no quorum")

	// ErrUnavailable: the store could not be reached, did not answer, or refused to serve; the wrapped error says which.
	// An operation that failed this way may have taken effect; for an acquisition that is undone.
	ErrUnavailable = errors.New("lock store unavailable")

	// ErrInvalid: a key or an option that cannot be used. The error names it. Nothing was sent, and trying again does not
	// help.
	ErrInvalid = errors.New("invalid argument")

	// ErrForeignKey: the store has something under the key that is not a lock (another type, or a value without an
	// expiry). It is left alone, and there is no point in waiting for it.
	ErrForeignKey = errors.New("the key holds something that is not a lock")

	// ErrClosed: the Client was closed.
	ErrClosed = errors.New("client is closed")
)

// Error is what every operation returns: what failed, on which key, and why.
type Error struct {
	Op  string // "lock", "trylock", "extend", "unlock", "do", "inspect" or "release"
	Key string
	Err error
}

// Error names the operation and the key; of a long key, the beginning.
func (e *Error) Error() string {
	key := e.Key
	if len(key) > 64 {
		key = key[:64] + "…"
	}
	return "locker: " + e.Op + " " + strconv.Quote(key) + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// HeldError is an [ErrHeld] with what the store knew about the holder.
type HeldError struct {
	// Remaining is the time after which the lock is free if its holder does not renew it. 0: not known.
	Remaining time.Duration
}

func (e *HeldError) Error() string {
	if e.Remaining <= 0 {
		return ErrHeld.Error()
	}
	return ErrHeld.Error() + " (for " + e.Remaining.String() + " unless renewed)"
}

// Is makes a HeldError match [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// NotHeldError is an [ErrNotHeld] with what the store has instead of the lock.
type NotHeldError struct {
	// Reason is LostGone if the store has nothing, LostTakenOver or LostSuperseded. Of a release, LostGone does not say that
	// the lock had been lost: the same release may have been executed before, by a network or a proxy that repeats what was
	// not answered. A Backend where that cannot happen returns ErrNotHeld itself instead.
	Reason LostReason
}

func (e *NotHeldError) Error() string { return ErrNotHeld.Error() }

// Is makes a NotHeldError match [ErrNotHeld].
func (e *NotHeldError) Is(target error) bool { return target == ErrNotHeld }

// reasonOf returns what an ErrNotHeld knows of how the lock was lost.
func reasonOf(notHeld error) LostReason {
	var e *NotHeldError
	if errors.As(notHeld, &e) {
		return e.Reason
	}
	return LostGone
}

// LostReason says how a lease was lost. The values are short and few: they are fit for a metric's attribute.
type LostReason string

const (
	// LostExpired means that the validity ended without a successful renewal.
	LostExpired LostReason = "expired"
	// LostGone means that the store has the lock no more, before its time, and does not know of another owner: somebody
	// deleted it, or the store forgot it.
	LostGone LostReason = "gone"
	// LostTakenOver means that another owner has the lock, or that it was taken away by force; see [Inspector].
	LostTakenOver LostReason = "taken over"
	// LostSuperseded means that the store has issued a newer fencing token: another owner has had the lock since.
	LostSuperseded LostReason = "superseded"
	// LostMaxHold means that the time given by [MaxHold] is over.
	LostMaxHold LostReason = "max hold reached"
	// LostClosed means that the Client was closed; the lock frees itself when its TTL ends.
	LostClosed LostReason = "closed"
)

// LostError is an [ErrLost] with the reason.
type LostError struct {
	Reason LostReason
}

func (e *LostError) Error() string { return ErrLost.Error() + ": " + string(e.Reason) }

// Is makes a LostError match [ErrLost], and [ErrClosed] if that is the reason.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || e.Reason == LostClosed && target == ErrClosed
}

// ended is ctx's error, if ctx has ended, by ctx alone. A driver's error is no witness: clients that share a socket surface
// one caller's deadline as another caller's DeadlineExceeded. Nor is the clock: the timer of a context may run a moment late,
// and a caller that is told of an end that its own context does not know of yet, and asks that, tries again at once. A
// deadline that has passed is waited for.
func ended(ctx context.Context) error {
	if d, ok := ctx.Deadline(); ok && ctx.Done() != nil && !time.Now().Before(d) {
		late := time.NewTimer(lateTimer)
		defer late.Stop()
		select {
		case <-ctx.Done():
		case <-late.C:
		}
	}
	return ctx.Err()
}

// lateTimer is how late the timer of a context may be. A context that does not end then does not mean its deadline.
const lateTimer = time.Second

// fromBackend makes of a backend's error what callers may rely on: it says nothing about the end of a context (whose end,
// the caller's, is [withContext]'s to say), and it matches one of the sentinels, ErrUnavailable if no other.
func fromBackend(err error) error {
	if err == nil {
		return nil
	}
	known := false
	for _, sentinel := range []error{ErrUnavailable, ErrHeld, ErrNotHeld, ErrInvalid, ErrForeignKey, ErrClosed} {
		known = known || errors.Is(err, sentinel)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = &shielded{err}
	}
	if !known {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// shielded is an error that matches all that err does, but for the errors of contexts. It has no Unwrap, because
// errors.Is would look behind it.
type shielded struct{ err error }

func (s *shielded) Error() string { return s.err.Error() }

func (s *shielded) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(s.err, target)
}

func (s *shielded) As(target any) bool { return errors.As(s.err, target) }

// waited is withContext for a Lock that has waited since start, and says for how long.
func waited(ctx context.Context, start time.Time, reason error) error {
	end := ended(ctx)
	if end == nil || errors.Is(reason, end) {
		return withContext(ctx, reason)
	}
	what := "cancelled"
	if errors.Is(end, context.DeadlineExceeded) {
		what = "timed out"
	}
	took := time.Since(start).Round(time.Millisecond)
	if cause := context.Cause(ctx); !errors.Is(end, cause) {
		what += fmt.Sprintf(" (%v)", cause)
	}
	return &waitedError{withContext(ctx, reason), fmt.Sprintf("%s after %v: %v", what, took, reason)}
}

// waitedError is err in other words.
type waitedError struct {
	err  error
	text string
}

func (e *waitedError) Error() string { return e.text }
func (e *waitedError) Unwrap() error { return e.err }

// withContext adds to reason, what was last seen, that ctx ended, if it did. reason may be nil, or ctx's own error.
func withContext(ctx context.Context, reason error) error {
	err := ended(ctx)
	if err == nil {
		return reason
	}
	if reason == err { //nolint:errorlint // a reason that wraps err says more
		reason = nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if reason == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, reason)
}
