package drivers

import (
	"context"
	"sync"
	"sync/atomic"
)

// Lifecycle implements the parts of [Driver] and [Subscriber] that do not depend on the client: what happens after
// Close, and with contexts that have ended. The zero value is open.
type Lifecycle struct {
	closed atomic.Bool

	mu            sync.Mutex
	subscriptions map[*subscription]struct{}
}

// Enter must be called at the beginning of Do. It returns an error that matches [ErrNotSent] if the driver is closed or
// ctx has ended.
func (lc *Lifecycle) Enter(ctx context.Context) error {
	if lc.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return NotSent(err)
	}
	return nil
}

// Shut must be called by Close. After it, Enter fails, and all subscriptions have ended. It reports whether this is the
// first call of Shut.
func (lc *Lifecycle) Shut() bool {
	first := !lc.closed.Swap(true)
	lc.mu.Lock()
	subscriptions := lc.subscriptions
	lc.subscriptions = nil
	lc.mu.Unlock()
	for s := range subscriptions {
		_ = s.end(ErrClosed)
	}
	for s := range subscriptions {
		<-s.done
	}
	return first
}
