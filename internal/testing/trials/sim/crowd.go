package sim

import "sync"

// crowd is a WaitGroup that may be waited for while more come from outside.
type crowd struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0; nil unless somebody waits
}

func (c *crowd) Go(f func()) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	go func() {
		defer c.leave()
		f()
	}()
}

func (c *crowd) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// Wait returns when nobody is there, for a moment at least.
func (c *crowd) Wait() {
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	<-idle
}
