package drivers

import (
	"context"
	"time"
)

// Direct is what a [Driver] is, too, if a caller that nothing can call away may wait inside Do, which spares it another
// goroutine.
type Direct interface {
	// Direct reports whether a call of Do that is made now returns by the deadline of its context although that has no
	// Done channel (Done returns nil): because the connection is there, and reading from it and writing to it keep to the
	// deadline. It is a matter of one moment to the next, so the promise is that of an attempt: Do may be late by a
	// connection that has to be made after all, within the client's own time-outs.
	//
	// It must not block. False is always right.
	Direct() bool
}

// Interruptible is what a [Direct] driver is, too, if callers that can be called away may wait inside Do as well: it can
// break off what one of them waits for, and nothing of the others'.
type Interruptible interface {
	Direct
	// Interruptible reports whether a call of Do with one command that is made now returns as soon as the Done channel of its
	// context is closed. That of such contexts is not closed by their deadline, which the driver keeps to unasked, as Direct
	// promises. The outcome of what is broken off is unknown, and its caller sees to that; the connection is the price.
	//
	// It must not block. False is always right.
	Interruptible() bool
}

// OnLeave is context.AfterFunc, at less cost for the contexts that a driver gets because it is [Interruptible]. It is called
// once at a time for one context, and stop once, before Do returns.
func OnLeave(ctx context.Context, interrupt func()) (stop func() bool) {
	if x, ok := ctx.(leaver); ok {
		return x.OnLeave(interrupt)
	}
	return context.AfterFunc(ctx, interrupt)
}

type leaver interface {
	OnLeave(interrupt func()) (stop func() bool)
}

// QuietDeadline returns the deadline that ctx has and does not tell by its Done channel, as the contexts of [Direct] and
// [Interruptible] drivers may.
func QuietDeadline(ctx context.Context) (end time.Time, quiet bool) {
	end, quiet = ctx.Deadline()
	if _, ok := ctx.(leaver); !ok && ctx.Done() != nil {
		quiet = false
	}
	return end, quiet
}
