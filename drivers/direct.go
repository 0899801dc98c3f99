package drivers

// Direct is an optional interface that may be implemented by a [Driver]. A caller whose context cannot be cancelled then
// waits inside Do, which spares it another goroutine. Without Direct, every caller waits outside.
type Direct interface {
	// Direct reports whether a call of Do that is made now returns by the deadline of its context although that has no
	// Done channel (Done returns nil): because the connection is there, and reading from it and writing to it keep to the
	// deadline. It is a matter of one moment to the next, so the promise is that of an attempt: Do may be late by a
	// connection that has to be made after all, within the client's own time-outs.
	//
	// It must not block. False is always right.
	Direct() bool
}
