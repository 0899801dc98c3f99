// Package lockertrace has hooks that let one see inside the calls of package locker, as net/http/httptrace has for
// requests. Tracing and metrics work through them, so that package locker imports neither.
package lockertrace

import (
	"context"
	"time"
)

// Trace is a set of hooks that run during Lock and TryLock and during the life of the resulting lease, as those of
// net/http/httptrace run during a request. Tracing and metrics are built on it. Put a Trace into the context of the
// call with [With].
//
// Any hook may be nil. A hook runs on the goroutine on which the event happens. Hooks may be called concurrently, and
// after the call has returned. They must be quick and safe for concurrent use.
//
// A hook may call the methods of the Lease, of the Locker and of an election. It must not wait for Close of the Client:
// Close waits for the calls and renewals that run the hook, so neither would return. A hook that needs to close the
// Client must start a goroutine for that. A call of a hook with the context of the call that runs it, which has the
// Trace, runs the hook again.
type Trace struct {
	// Attempted is called when an attempt to acquire has ended. An acquisition that waits in a store's queue is one
	// attempt.
	Attempted func(Attempt)

	// Waiting is called when another owner holds the lock and the call begins to wait. It is called at most once per
	// call.
	Waiting func(Waiting)

	// Woken is called when a waiting call stops sleeping. It then checks the lock again, or has got it.
	Woken func(Wake)

	// Voted is called, by backends with several nodes, when a node has answered or when the operation was decided
	// before it has.
	Voted func(Vote)

	// Renewed is called when a renewal has ended, whether it succeeded or not.
	Renewed func(Renewal)

	// InDoubt is called when a renewal has failed for the first time since the last success. The lease is still valid.
	InDoubt func(err error)

	// Lost is called when the lease has ended without Unlock.
	Lost func(err error)

	// LeaseOf is called for each lease of a call that acquires several locks in one step, when the lease begins, with
	// the position of its key among those of the call. Renewed, InDoubt and Lost of the Trace that it returns are called
	// for that lease, and not those of this Trace. It may return nil.
	LeaseOf func(i int) *Trace
}

// Attempt is one attempt to acquire.
type Attempt struct {
	Duration time.Duration // from the request to the result, including a wait in the store's queue
	Err      error         // nil if the lock was acquired
}

// Waiting is what was known about the lock when a call began to wait.
type Waiting struct {
	// Remaining is the time after which the lock is free if its holder does not renew it. 0 means that it is not known.
	Remaining time.Duration

	// Label names the holder for people; see locker.Label. It is empty if it is not known. If callers of the same
	// Client are ahead of this one, it is the label of the holder that these have seen last.
	Label string
}

// WakeReason says what ended a sleep. There are few values and they are short, so they can be used as an attribute of a
// metric.
type WakeReason string

const (
	// WakeHandover means that the store handed the lock to this waiter.
	WakeHandover WakeReason = "handover"
	// WakeLocal means that another caller of the same Client handed the lock to this one, without the store. The call has
	// the lock then, and Attempted is not called.
	WakeLocal WakeReason = "local"
	// WakeFront means that no caller of the same Client is ahead of this one any more.
	WakeFront WakeReason = "front"
	// WakeNotify means that the store reported that the lock may be free.
	WakeNotify WakeReason = "notify"
	// WakePoll means that the interval between two polls was over.
	WakePoll WakeReason = "poll"
)

// Wake is the end of one sleep of a waiting call.
type Wake struct {
	Reason WakeReason
	Slept  time.Duration
}

// Vote is the answer of one node of a backend with several nodes.
type Vote struct {
	Node     string        // its name, as in errors
	Op       string        // "acquire", "extend", "verify" or "release"
	Duration time.Duration // from the request until the node answered or, if Pending, the operation was decided

	// Err is nil if the node agreed. Otherwise it matches ErrHeld, ErrNotHeld, ErrUnavailable, ErrForeignKey or
	// ErrInvalid.
	Err error

	// Pending means that the other nodes decided the operation before this node answered. It does not mean that the
	// node has a problem. If the node had been asked by then, another Vote with Late set follows when the node has
	// answered or its connection has failed.
	Pending bool

	// Late means that the operation had already ended, so that this vote did not count.
	Late bool
}

// Renewal is one attempt to renew a lease.
type Renewal struct {
	Duration time.Duration
	// Err is nil if the lease was renewed. It matches ErrLost if the lease is lost. After any other error the outcome
	// is unknown, and the renewal is tried again.
	Err error
}

type traceKey struct{}

// With returns a context that carries t. If ctx already carries a Trace, the hooks of both are called, those of t
// first.
func With(ctx context.Context, t *Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, merge(t, From(ctx)))
}

// From returns the Trace that ctx carries, or nil if there is none. It is for backends and middleware.
func From(ctx context.Context) *Trace {
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}

// Lease returns the Trace of one of the leases of a call that acquires several locks in one step; see LeaseOf. t and
// the result may be nil. It is for package locker.
func (t *Trace) Lease(i int) *Trace {
	if t == nil || t.LeaseOf == nil {
		return t
	}
	return t.LeaseOf(i)
}

// merge returns a Trace that calls the hooks of both, those of first before those of second. Both may be nil.
func merge(first, second *Trace) *Trace {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	t := &Trace{
		Attempted: both(first.Attempted, second.Attempted),
		Waiting:   both(first.Waiting, second.Waiting),
		Woken:     both(first.Woken, second.Woken),
		Voted:     both(first.Voted, second.Voted),
		Renewed:   both(first.Renewed, second.Renewed),
		InDoubt:   both(first.InDoubt, second.InDoubt),
		Lost:      both(first.Lost, second.Lost),
	}
	if first.LeaseOf != nil || second.LeaseOf != nil {
		t.LeaseOf = func(i int) *Trace { return merge(first.Lease(i), second.Lease(i)) }
	}
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
