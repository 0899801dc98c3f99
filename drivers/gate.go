package drivers

import (
	"context"
	"sync/atomic"
)

// Gate keeps two promises of [Driver] that have nothing to do with the client. The zero value is open.
type Gate struct{ closed atomic.Bool }

// Enter is for the beginning of Do: an error, which matches [ErrNotSent], says that the driver is closed or ctx has
// ended.
func (g *Gate) Enter(ctx context.Context) error {
	if g.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return NotSent(err)
	}
	return nil
}

// Shut is for Close: no call enters any more. It reports whether this is the first time.
func (g *Gate) Shut() bool { return !g.closed.Swap(true) }
