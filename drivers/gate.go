package drivers

import (
	"context"
	"sync"
	"sync/atomic"
)

// Gate keeps the promises of [Driver] and [Subscriber] that have nothing to do with the client. The zero value is open.
type Gate struct {
	closed atomic.Bool

	mu            sync.Mutex
	subscriptions map[*subscription]struct{}
}

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

// Shut is for Close: no call enters any more, and all subscriptions end. It reports whether this is the first time.
func (g *Gate) Shut() bool {
	first := !g.closed.Swap(true)
	g.mu.Lock()
	subscriptions := g.subscriptions
	g.subscriptions = nil
	g.mu.Unlock()
	for s := range subscriptions {
		_ = s.end(ErrClosed)
	}
	for s := range subscriptions {
		<-s.done
	}
	return first
}
