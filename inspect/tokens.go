package inspect

import "context"

// FenceRaiser is an optional interface that may be implemented by a backend.Backend that issues fencing tokens. If not,
// RaiseFences of its Client returns an error that matches errors.ErrUnsupported. It is for operators who move a program
// to another store, while the resource keeps the greatest token that it has seen.
//
// locker.Client always implements FenceRaiser. Use locker.As to find it behind middleware.
type FenceRaiser interface {
	// RaiseFences makes the tokens of all acquisitions that begin when it has returned greater than past, for every key
	// of the store's prefix, schema or bucket. It never lowers tokens: if they are past it already, it changes nothing.
	// Locks that are held keep theirs. Callers that hand a lock over to each other within a process may go on with its
	// block of tokens for up to 50 ms, and begin no acquisition.
	//
	// past must be below 2⁵², so that tokens stay exact in Lua and JavaScript for long. locker.Client returns an error
	// that matches locker.ErrInvalid otherwise, and does not ask the backend. If it is not known whether the tokens were
	// raised, the error matches locker.ErrUnavailable, and RaiseFences may be called again. If they are not past it, and
	// the store cannot raise them atomically, the error matches errors.ErrUnsupported, and says what to do.
	//
	// Tokens in package record follow the clocks of the clients, so they are greater than past if these are past it.
	RaiseFences(ctx context.Context, past uint64) error
}
