package drivers

import "context"

// Await returns the result of call, or ctx's error as soon as ctx ends. It is for clients whose calls can outlast the
// deadline of their context.
//
// If ctx ends first, call is abandoned: it goes on in a goroutine until the client's own time-out ends it, and its
// result is dropped. The outcome of the commands is then unknown, and the arguments of call may be in use until it
// ends.
func Await(ctx context.Context, call func() ([]Reply, error)) ([]Reply, error) {
	if ctx.Done() == nil {
		end, ok := ctx.Deadline()
		if !ok {
			return call()
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), end)
		defer cancel()
	}
	type result struct {
		replies []Reply
		err     error
	}
	done := make(chan result, 1) // buffered, so that the goroutine of an abandoned call can end
	go func() {
		replies, err := call()
		done <- result{replies, err}
	}()
	select {
	case r := <-done:
		return r.replies, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
