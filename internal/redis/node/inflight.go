package node

import "sync/atomic"

// InFlight counts the calls in progress, so that Close can wait for them. Calls may begin while Close waits and after
// it. They find that the node is closed, and end soon. A sync.RWMutex would keep them out while Close waits to lock it
// for writing. Unlock and Extend have bounds of their own, which Close must not stretch.
type InFlight struct {
	under atomic.Int64
	over  atomic.Pointer[chan struct{}] // has room for one; the call that ends as the last sends to it; nil until Wait
}

// Enter counts a call that begins.
func (c *InFlight) Enter() { c.under.Add(1) }

// Leave counts a call that ends.
func (c *InFlight) Leave() {
	if c.under.Add(-1) > 0 {
		return
	}
	if over := c.over.Load(); over != nil {
		select {
		case *over <- struct{}{}:
		default: // the channel is full: Wait will look
		}
	}
}

// Wait returns when no call is in progress. It may be called once.
func (c *InFlight) Wait() {
	over := make(chan struct{}, 1)
	c.over.Store(&over)
	for c.under.Load() > 0 {
		<-over
	}
}
