// Package ending tells how the context of a call has ended.
package ending

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Of returns ctx's error if ctx has ended, and nil otherwise. Only ctx itself decides this:
//
//   - The error of a driver does not tell. Clients that share a socket report one caller's deadline as another caller's
//     DeadlineExceeded.
//   - The clock does not tell. The timer of a context may fire late, and a caller that loops until ctx.Err is not nil
//     would try again at once. If the deadline has passed, Of waits for the timer.
func Of(ctx context.Context) error {
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

// lateTimer is how late the timer of a context may be. A context that has not ended by then does not observe its
// deadline.
const lateTimer = time.Second

// Why returns end, the error of ctx, with the cause that ctx was ended with if that says more.
func Why(ctx context.Context, end error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(end, cause) {
		return fmt.Errorf("%w (%w)", end, cause)
	}
	return end
}
