package locker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/internal/core/ending"
	"github.com/golocker/locker/internal/core/label"
)

// Sentinel errors. Every error of this module that a caller should react to matches one of them with errors.Is,
// whatever backend and middleware it comes from. If the caller's context has ended, the error also matches the
// context's error.
var (
	// ErrHeld means that another owner holds the lock.
	ErrHeld = errors.New("held by another owner")

	// ErrNotHeld means that the lock no longer belonged to the lease when Unlock was called. The lock had expired, was
	// deleted, or was taken over by another owner.
	ErrNotHeld = errors.New("no longer held")

	// ErrLost means that the lease ended before Unlock. [LostError] has the reason.
	ErrLost = errors.New("lock lost")

	// ErrUnlocked means that the lease was released by Unlock.
	ErrUnlocked = errors.New("already unlocked")

	// ErrNoQuorum means that too few nodes of a quorum-based backend answered in time. Such an error also matches
	// ErrUnavailable, so that callers can check for ErrUnavailable on every backend.
	ErrNoQuorum = errors.New("no quorum")

	// ErrUnavailable means that the store could not be reached, did not answer, or refused to serve. The wrapped error
	// says which. The operation may have taken effect. An acquisition that took effect is undone.
	ErrUnavailable = errors.New("lock store unavailable")

	// ErrReleaseUnknown means that the function that was passed to [Do] or [TryDo] has returned, and that it is not known
	// whether the lock was released. The release goes on in the background, and otherwise the lock ends with its TTL. Such
	// an error does not match ErrUnavailable, because to call the function again would do its work twice.
	ErrReleaseUnknown = errors.New("it is not known whether the lock was released")

	// ErrNotReplicated means that the store has executed the operation, and that fewer of its replicas have confirmed it
	// in time than the program asked for, as with single.WaitReplicas. An acquisition is undone, and an extension does
	// not count. [NotReplicatedError] has the numbers. Such an error also matches ErrUnavailable.
	ErrNotReplicated = errors.New("not replicated")

	// ErrInvalid means that a key or an option cannot be used. The error names it. Nothing was acquired, and trying
	// again does not help.
	ErrInvalid = errors.New("invalid argument")

	// ErrReentrant means that the context of a Lock carries a lease of the same lock and the same Client, as Do gives it
	// to its function, so that Lock would wait for its own caller. Locks are not re-entrant. Such an error also matches
	// ErrInvalid.
	ErrReentrant = errors.New("not re-entrant")

	// ErrForeignKey means that the key holds something that is not a lock: a value of another type, or one without an
	// expiry. The value is not changed. Waiting for it does not help.
	ErrForeignKey = errors.New("the key holds something that is not a lock")

	// ErrClosed means that the Client was closed.
	ErrClosed = errors.New("client is closed")

	// ErrDraining means that [Client.Drain] has begun, and that no further locks are acquired. Such an error also matches
	// ErrClosed, because it means the same to the caller of a Lock: to call it again does not help.
	ErrDraining error = draining{}
)

// draining is the type of ErrDraining.
type draining struct{}

func (draining) Error() string { return "client is draining: it acquires no more locks" }

func (draining) Is(target error) bool { return target == ErrClosed }

var errReentrant = fmt.Errorf("%w: %w: the context carries a lease of this lock, so the call would wait for its own "+
	"caller", ErrInvalid, ErrReentrant)

// Error is the type of the errors that operations return. It names the operation and the key.
type Error struct {
	// Op is "lock", "trylock", "extend", "verify", "unlock", "do", "inspect", "list" or "release". LockAll and TryLockAll
	// have "trylock" for their step that acquires all locks, and "lock" or "trylock" for a single lock. Op is "lockall" or
	// "trylockall" if they were called without keys, or if a lock was lost at once, and "hold" if a lock of an AllLease
	// was lost. Package rwlock also has "upgrade" and "downgrade", and package once "once".
	Op  string
	Key string // the names of several locks are separated by commas
	Err error  // why it failed; not nil
}

// Error returns the operation, the key and the text of Err. A long key is cut off.
func (e *Error) Error() string {
	key := e.Key
	if len(key) > 64 {
		key = key[:64] + "…"
	}
	return "locker: " + e.Op + " " + strconv.Quote(key) + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// HeldError is an error that matches [ErrHeld] and says what the store knows about the holder.
type HeldError struct {
	// Remaining is the time after which the lock is free if its holder does not renew it. 0 means that it is not known.
	Remaining time.Duration

	// Seen is set on stores that do not count TTLs, where each process watches the lock instead. It is for how long this
	// one has known of the holder's last renewal. Remaining only gets shorter for those who go on watching: a process that
	// looks once finds the lock of a holder that has crashed held, and so does the next one. 0: the store counts.
	Seen time.Duration

	// Label names the holder for people; see the option [Label]. It is empty if the holder has none, if the store does
	// not keep labels, and if the lock is taken without an owner because of [MinHold].
	Label string
}

// Error returns a text such as "held by web-7:4211 for 28 s unless renewed". It leaves out what is not known.
func (e *HeldError) Error() string {
	text := ErrHeld.Error()
	if e.Label != "" {
		text = "held by " + label.Show(e.Label)
	}
	switch {
	case e.Seen > 0:
		text += ", first seen " + roughly(e.Seen) + " ago; from a dead holder it can be taken in " + roughly(e.Remaining)
	case e.Remaining > 0:
		text += " for " + roughly(e.Remaining) + " unless renewed"
	}
	return text
}

// roughly returns d for people, with two or three digits.
func roughly(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(max(1, d.Milliseconds()), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
	case d < time.Minute:
		return strconv.FormatFloat(d.Round(time.Second).Seconds(), 'f', -1, 64) + " s"
	default:
		return d.Round(time.Second).String()
	}
}

// Is makes a HeldError match [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// GracePeriodError is an error that matches [ErrUnavailable]. It says that a node of the store may have forgotten
// locks, because it was restarted, for example, and is in the grace period that its restart guard keeps: it rests, and
// grants no locks until those that it may have forgotten have ended. It goes on to extend and to release.
type GracePeriodError struct {
	Node      string        // the name of the node
	Remaining time.Duration // when it will grant locks again
}

// Error returns a text such as "node b rests for another 12 s after a restart or a loss of its data".
func (e *GracePeriodError) Error() string {
	return e.Node + " rests for another " + roughly(e.Remaining) + " after a restart or a loss of its data"
}

// Is makes a GracePeriodError match [ErrUnavailable].
func (e *GracePeriodError) Is(target error) bool { return target == ErrUnavailable }

// NotHeldError is an error that matches [ErrNotHeld] and says what the store has instead of the lock. It is returned by
// backends.
type NotHeldError struct {
	// Reason is LostGone if the store has nothing under the key, LostTakenOver or LostSuperseded.
	//
	// In the answer to a release, LostGone does not mean that the lock was lost: a network or a proxy that repeats
	// unanswered requests may have delivered the same release before. A Backend where that cannot happen should return
	// ErrNotHeld instead of a NotHeldError with LostGone.
	Reason LostReason
}

// Error returns the text of [ErrNotHeld].
func (e *NotHeldError) Error() string { return ErrNotHeld.Error() }

// Is makes a NotHeldError match [ErrNotHeld].
func (e *NotHeldError) Is(target error) bool { return target == ErrNotHeld }

// reasonOf returns the reason that notHeld has, or LostGone if it has none.
func reasonOf(notHeld error) LostReason {
	var e *NotHeldError
	if errors.As(notHeld, &e) {
		return e.Reason
	}
	return LostGone
}

// unknownRelease is an error of Unlock that matches ErrUnavailable, as Do returns it. It must match neither that nor
// the end of a context, so it has no Unwrap method.
type unknownRelease struct{ err error }

func (e *unknownRelease) Error() string {
	err := e.err
	if known, ok := err.(*Error); ok { //nolint:errorlint // another one is about something else
		err = known.Err
	}
	return ErrReleaseUnknown.Error() + ": " + err.Error()
}

func (e *unknownRelease) Is(target error) bool { return target == ErrReleaseUnknown }

// As finds what the error has of a backend, such as its votes.
func (e *unknownRelease) As(target any) bool { return errors.As(e.err, target) }

// NotReplicatedError is an error that matches [ErrNotReplicated] and says how many replicas have confirmed the
// operation.
type NotReplicatedError struct {
	// Got is how many replicas have confirmed it, and Want how many have to.
	Got, Want int

	// Err is not nil if the store did not count the replicas, and says why. Got is 0 then.
	Err error
}

// Error returns a text such as "not replicated: confirmed by 0 of 1 replicas".
func (e *NotReplicatedError) Error() string {
	text := fmt.Sprintf("%v: confirmed by %d of %d replicas", ErrNotReplicated, e.Got, e.Want)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is makes a NotReplicatedError match [ErrNotReplicated].
func (e *NotReplicatedError) Is(target error) bool { return target == ErrNotReplicated }

// Unwrap returns Err.
func (e *NotReplicatedError) Unwrap() error { return e.Err }

// LostReason says how a lease was lost. There are few values and they are short, so they can be used as an attribute of
// a metric.
type LostReason string

const (
	// LostExpired means that the validity ended without a successful renewal.
	LostExpired LostReason = "expired"
	// LostGone means that the store no longer has the lock although its TTL has not ended, and does not know of another
	// owner. The lock was deleted, or the store lost its data.
	LostGone LostReason = "gone"
	// LostTakenOver means that another owner has the lock, or that an operator has released it by force; see package
	// inspect.
	LostTakenOver LostReason = "taken over"
	// LostSuperseded means that the store has issued a newer fencing token, so another owner has had the lock since.
	LostSuperseded LostReason = "superseded"
	// LostMaxHold means that the limit set by [MaxHold] was reached.
	LostMaxHold LostReason = "max hold reached"
	// LostClosed means that the Client was closed. The lock becomes free when its TTL ends.
	LostClosed LostReason = "closed"
)

// LostError is an error that matches [ErrLost] and has the reason.
type LostError struct {
	Reason LostReason // one of the constants Lost…

	// Err is the error of the last renewal, if Reason is LostExpired and that renewal failed. It is a part of the text.
	// The LostError does not match what Err matches: a loss is not an outage.
	Err error
}

// Error returns a text such as "lock lost: expired: the last renewal failed: …".
func (e *LostError) Error() string {
	text := ErrLost.Error() + ": " + string(e.Reason)
	if e.Err != nil {
		text += ": the last renewal failed: " + e.Err.Error()
	}
	return text
}

// Is makes a LostError match [ErrLost], and [ErrClosed] if that is the reason.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || e.Reason == LostClosed && target == ErrClosed
}

// fromBackend converts an error of a backend. The result does not match the errors of contexts, because only
// withContext reports the end of the caller's context. It matches ErrUnavailable if it matches no other sentinel error.
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

// shielded is an error that matches everything that err matches, except the errors of contexts. It has no Unwrap
// method, because errors.Is would use that to look at err itself.
type shielded struct{ err error }

func (s *shielded) Error() string { return s.err.Error() }

func (s *shielded) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(s.err, target)
}

func (s *shielded) As(target any) bool { return errors.As(s.err, target) }

// waited is withContext for a call of Lock that began at start. The text says how long the call has waited.
func waited(ctx context.Context, start time.Time, reason error) error {
	end := ending.Of(ctx)
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
	return &retoldError{withContext(ctx, reason), fmt.Sprintf("%s after %v: %v", what, took, reason)}
}

// unreleased is withContext for Unlock, whose request had the context release. The text does not mention the end of
// ctx, which has not ended the release. If release has ended, the text does not call that a deadline either, because
// the caller has set none.
func unreleased(ctx, release context.Context, reason error) error {
	text := reason.Error()
	if release.Err() != nil {
		text = strings.ReplaceAll(text, context.DeadlineExceeded.Error(), "no answer within "+releaseBound.String())
	}
	return &retoldError{withContext(ctx, reason), text}
}

// retoldError is err with another text.
type retoldError struct {
	err  error
	text string
}

func (e *retoldError) Error() string { return e.text }
func (e *retoldError) Unwrap() error { return e.err }

// withContext returns reason, and adds ctx's error to it if ctx has ended. reason is the result of the last contact
// with the store. It may be nil or ctx's own error.
func withContext(ctx context.Context, reason error) error {
	err := ending.Of(ctx)
	if err == nil {
		return reason
	}
	if reason == err { //nolint:errorlint // a reason that wraps err has more information and is kept
		reason = nil
	}
	err = ending.Why(ctx, err)
	if reason == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, reason)
}
