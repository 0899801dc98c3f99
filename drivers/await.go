package drivers

import "context"

// Await returns what call returns, or the error of ctx as soon as ctx ends. It is for clients whose calls can outlast
// the deadline of their context. An abandoned call goes on in its goroutine until the client's own time-out ends it;
// its result is dropped, so the outcome of what it sent is unknown. What it was called with may be in use until then.
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
	done := make(chan result, 1) // has room, so that an abandoned call can end
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
