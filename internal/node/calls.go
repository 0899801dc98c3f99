package node

import "sync/atomic"

// Calls counts the calls under way, for Close to wait for. Calls are let in while Close waits, and after it; they find
// that the node is closed, and are over soon. A sync.RWMutex would keep them out while Close waits to have it for
// writing, although Unlock and Extend have a bound of their own, which Close must not stretch.
type Calls struct {
	under atomic.Int64
	over  atomic.Pointer[chan struct{}] // has room for one: told by a call that was the last; nil until Wait
}

// Enter begins a call.
func (c *Calls) Enter() { c.under.Add(1) }

// Leave ends it.
func (c *Calls) Leave() {
	if c.under.Add(-1) > 0 {
		return
	}
	if over := c.over.Load(); over != nil {
		select {
		case *over <- struct{}{}:
		default: // Wait has not looked yet
		}
	}
}

// Wait returns at a moment at which no call is under way. It is called once.
func (c *Calls) Wait() {
	over := make(chan struct{}, 1)
	c.over.Store(&over)
	for c.under.Load() > 0 {
		<-over
	}
}
