package drivers

// Direct is an optional interface that may be implemented by a [Driver]. If not, Do is always called on another
// goroutine, while the caller waits for the result or for the end of its context. With Direct, a caller whose context
// cannot be cancelled may call Do itself, which saves the goroutine.
type Direct interface {
	// Direct reports whether a call of Do that is made now returns by the deadline of its context, although the context
	// has no Done channel. This is the case if there is a connection, and if reading and writing observe the deadline.
	//
	// The answer may be out of date when Do is called. If Do has to open a connection after all, it may return late,
	// within the client's own time-outs.
	//
	// Direct must not block. It may always return false.
	Direct() bool
}
