package drivers

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Lifecycle implements the parts of [Driver] and [Subscriber] that do not depend on the client: what happens after
// Close, with contexts that have ended, and with connections that are of no use any more. The zero value is open.
type Lifecycle struct {
	closed atomic.Bool

	mu            sync.Mutex
	subscriptions map[*subscription]struct{}
	left          time.Time // when Stale last returned true
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

// leavePause is the shortest time between two returns of true by Stale.
const leavePause = 500 * time.Millisecond

// Stale must be called with the replies that Do has received. It reports whether the driver has to leave the
// connections that it has, because one of the replies shows that new ones may be better:
//
//   - READONLY, MASTERDOWN, UNBLOCKED: the server is a replica. The roles may have changed without a closed connection,
//     as in a planned failover, or a name leads to another address, so that only new connections lead to the master.
//   - NOAUTH: the connection was made without a password, and there may be one now.
//
// If Stale returns true, it returns false for the next 500 ms. A driver whose address really leads to a replica
// therefore does not reconnect with every call. Commands that are in flight on the connections may fail with an unknown
// outcome. The driver returns the replies as they are in any case.
func (lc *Lifecycle) Stale(replies []Reply) bool {
	if !slices.ContainsFunc(replies, staleReply) {
		return false
	}
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if !lc.left.IsZero() && time.Since(lc.left) < leavePause {
		return false
	}
	lc.left = time.Now()
	return true
}

// staleReply reports whether reply has such a refusal. Scripts for many locks return refusals in arrays.
func staleReply(reply Reply) bool {
	switch reply := reply.(type) {
	case ServerError:
		return slices.Contains([]string{"READONLY", "MASTERDOWN", "UNBLOCKED", "NOAUTH"}, reply.Code())
	case []Reply:
		return slices.ContainsFunc(reply, staleReply)
	}
	return false
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
