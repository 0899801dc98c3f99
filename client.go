package locker

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Client turns a [Backend] into a [Locker]. It waits for locks, renews leases, notices losses and releases locks.
// Create one with [NewClient], or with the New function of a backend's package. A Client is safe for concurrent use and
// meant to be shared.
type Client struct {
	backend Backend
	queuer  Queuer // the backend, if it implements Queuer; else nil
	queues  keyQueues
	closing chan struct{} // closed when Close begins
	gone    chan struct{} // closed when Close has ended

	mu       sync.Mutex
	schedule schedule // of the leases that are held
	closed   bool     // Close has begun
	joining  bool     // Close waits for background

	// attempts counts the attempts in progress. Close waits for them for closeGrace, and then closes the backend. Call
	// Add with mu held while closed is false, or within an attempt.
	attempts sync.WaitGroup

	// background counts renewals, and releases of leases that were never returned to a caller. Close waits for them
	// after it has closed the backend. Call Add with mu held while joining is false.
	background sync.WaitGroup
}

// closeGrace is how long Close waits for the attempts in progress before it closes the backend. An attempt that is
// granted meanwhile needs the backend to release the lock.
const closeGrace = 250 * time.Millisecond

// NewClient returns a Client of b. If b is an io.Closer, closing the Client closes b.
func NewClient(b Backend) *Client {
	queuer, _ := b.(Queuer)
	c := &Client{
		backend: b,
		queuer:  queuer,
		closing: make(chan struct{}),
		gone:    make(chan struct{}),
	}
	c.schedule.origin = time.Now()
	return c
}

// enter adds one to g, which is a group that Close waits for. It returns false if the Client is closed.
func (c *Client) enter(g *sync.WaitGroup) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	g.Add(1)
	return true
}

// join adds one to background. It returns false if Close already waits for that group or has ended.
func (c *Client) join() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joining {
		return false
	}
	c.background.Add(1)
	return true
}

// Close closes the Client and, if it is an io.Closer, the backend. Waiting calls of Lock return [ErrClosed]. Leases
// that are still held end as lost, with the reason [LostClosed], and are no longer renewed.
//
// Close does not release locks, because the code that they protect may still be running. They end with their TTL. Call
// Unlock before Close to release them earlier.
//
// If the store does not answer, Close may take some seconds: the backend's own timeout, which is 5 s by default, and a
// second more on Redis, where releases that were not answered get one more try.
//
// Closing twice is harmless. The second call waits for the first to end and returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.gone
		return nil
	}
	defer close(c.gone)
	c.closed = true
	close(c.closing)
	if c.schedule.timer != nil {
		c.schedule.timer.Stop()
	}
	leases := slices.Clone(c.schedule.leases)
	c.mu.Unlock()

	for _, l := range leases {
		_ = l.finish(&LostError{Reason: LostClosed})
	}
	idle := make(chan struct{})
	go func() {
		c.attempts.Wait()
		close(idle)
	}()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-idle:
	case <-grace.C: // closing the backend interrupts them
	}
	var err error
	if closer, ok := c.backend.(io.Closer); ok {
		err = closer.Close()
	}
	c.mu.Lock()
	c.joining = true
	c.mu.Unlock()
	c.background.Wait()
	if err != nil {
		return fmt.Errorf("locker: close: %w", err)
	}
	return nil
}

// NewToken returns a new owner value, which is 20 random bytes as printable text. It is for a [Queuer] that makes
// several attempts.
func NewToken() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	var text [27]byte
	base64.RawURLEncoding.Encode(text[:], b[:])
	return string(text[:])
}
