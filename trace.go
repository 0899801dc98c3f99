package locker

import (
	"context"
	"time"
)

// Trace is a set of hooks that let one see inside Lock, TryLock and the life of the lease that comes of them, as
// net/http/httptrace does for requests. It is how tracing and metrics work, without this package importing any. Put it into
// the context of the call with [WithTrace].
//
// Any hook may be nil. Hooks are called synchronously, on whatever goroutine the event happens, some after the call
// has returned, and some concurrently: they must be quick, safe for concurrent use, and must not call the Lease. Nor must
// they wait for Close of the Client, which waits for the calls and renewals that a hook is called from, and so for the hook
// itself: it would not return. A hook that wants to close the Client starts a goroutine for that.
type Trace struct {
	// Attempted: an attempt to acquire has ended. An acquisition that waits in a store's queue is one attempt.
	Attempted func(Attempt)
	// Waiting: another owner holds the lock, and the call begins to wait for it. It comes once per call at most.
	Waiting func(Waiting)
	// Woken: a call that waits stopped sleeping, to look at the lock again.
	Woken func(Wake)
	// Voted: a node has answered, or the operation was decided without it, of a backend that asks several.
	Voted func(Vote)
	// Renewed: a renewal has ended, well or not.
	Renewed func(Renewal)
	// InDoubt: a renewal has failed for the first time since the last success. The lease is still valid.
	InDoubt func(err error)
	// Lost: the lease ended without Unlock.
	Lost func(*LostError)
}

// Attempt is one attempt to acquire.
type Attempt struct {
	Duration time.Duration
	Err      error // nil: acquired
}

// Waiting is what was known of the lock when a call began to wait.
type Waiting struct {
	// Remaining is the time after which the lock is free if its holder does not renew it. 0: not known.
	Remaining time.Duration
}

// WakeReason says what ended a sleep. The values are short and few: they are fit for a metric's attribute.
type WakeReason string

const (
	// WakeHandover means that the lock was handed over to this waiter.
	WakeHandover WakeReason = "handover"
	// WakeTurn means that a waiter of this Client that came before has left, so this one is the first.
	WakeTurn WakeReason = "turn"
	// WakeHint means that the store said that the lock may be free.
	WakeHint WakeReason = "hint"
	// WakePoll means that it was time to look again, because messages can be lost.
	WakePoll WakeReason = "poll"
)

// Wake is the end of one sleep of a waiting call.
type Wake struct {
	Reason WakeReason
	Slept  time.Duration
}

// Vote is what one node of several answered.
type Vote struct {
	Node     string
	Op       string // "acquire", "extend" or "release"
	Duration time.Duration
	// Err is nil if the node agreed, matches ErrHeld, ErrNotHeld or ErrUnavailable otherwise.
	Err error
	// Pending: others have decided the operation before this node answered, which says nothing against the node. If it had
	// been asked by then, another Vote follows, with Late set, when it has answered or its connection has failed.
	Pending bool
	// Late: the operation had been decided before, and has ended; this vote did not count.
	Late bool
}

// Renewal is one attempt to renew a lease.
type Renewal struct {
	Duration time.Duration
	Err      error // nil: renewed; ErrLost: lost; anything else: not known, and tried again
}

type traceKey struct{}

// WithTrace returns a context that carries t, in addition to a Trace that ctx carries already: the hooks of t are called
// first.
func WithTrace(ctx context.Context, t *Trace) context.Context {
	if old := TraceFrom(ctx); old != nil {
		t = &Trace{
			Attempted: both(t.Attempted, old.Attempted),
			Waiting:   both(t.Waiting, old.Waiting),
			Woken:     both(t.Woken, old.Woken),
			Voted:     both(t.Voted, old.Voted),
			Renewed:   both(t.Renewed, old.Renewed),
			InDoubt:   both(t.InDoubt, old.InDoubt),
			Lost:      both(t.Lost, old.Lost),
		}
	}
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceFrom returns the Trace that ctx carries, or nil. It is for backends and middleware.
func TraceFrom(ctx context.Context) *Trace {
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}

func both[T any](first, second func(T)) func(T) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(event T) {
		first(event)
		second(event)
	}
}

func (t *Trace) attempted(start time.Time, err error) {
	if t != nil && t.Attempted != nil {
		t.Attempted(Attempt{time.Since(start), err})
	}
}

func (t *Trace) waiting(remaining time.Duration) {
	if t != nil && t.Waiting != nil {
		t.Waiting(Waiting{remaining})
	}
}

func (t *Trace) woken(reason WakeReason, since time.Time) {
	if t != nil && t.Woken != nil {
		t.Woken(Wake{reason, time.Since(since)})
	}
}
