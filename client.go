package locker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"github.com/golocker/locker/lockertrace"
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

// Lock implements [Locker].
func (c *Client) Lock(ctx context.Context, key string, opts ...Option) (_ Lease, err error) {
	defer func() {
		if err != nil {
			err = &Error{"lock", key, err}
		}
	}()
	o := newOptions(opts)
	if err := o.validate(key); err != nil {
		return nil, err
	}
	if err := ended(ctx); err != nil {
		return nil, withContext(ctx, err)
	}
	start := time.Now()
	turn, err := c.queues.enter(ctx, c.closing, key)
	if err != nil {
		return nil, waited(ctx, start, err)
	}
	defer func() { turn.leave(err == nil, o.label) }()
	l, err := c.wait(ctx, key, o, turn)
	if err != nil {
		return nil, waited(ctx, start, err)
	}
	return l, nil
}

// TryLock implements [Locker].
func (c *Client) TryLock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	o := newOptions(opts)
	err := o.validate(key)
	if err == nil {
		var l *lease
		if l, err = c.attempt(ctx, key, o, nil); err == nil {
			return l, nil
		}
		err = withContext(ctx, err)
	}
	return nil, &Error{"trylock", key, err}
}

// attempt makes one attempt to acquire key. If turn is not nil and the backend is a Queuer, the attempt waits in the
// store's queue. The error says what was seen of the lock. It is ctx's error if ctx had ended before anything was sent.
func (c *Client) attempt(ctx context.Context, key string, o options, turn *keyQueue) (*lease, error) {
	if !c.enter(&c.attempts) {
		return nil, ErrClosed
	}
	defer c.attempts.Done()
	if err := ended(ctx); err != nil {
		return nil, err
	}
	req := Request{Key: key, Token: NewToken(), TTL: o.ttl, Label: o.label, MinHold: o.minHold}
	trace := lockertrace.From(ctx)
	var grant Grant
	var err error
	start := time.Now()
	if turn == nil || c.queuer == nil {
		grant, err = c.backend.Acquire(ctx, req)
	} else {
		req.Closing, req.Failing, req.Patience = c.closing, turn.failing, o.patience
		req.Waiting = func(held *HeldError) { turn.saw(held) }
		grant, err = c.queuer.Queue(ctx, req)
		req.Closing, req.Waiting, req.Failing = nil, nil, nil
	}
	err = fromBackend(err)
	attempted(trace, start, err)
	if err != nil {
		return nil, err
	}
	return c.begin(ctx, trace, req, grant, start, o)
}

// begin begins the lease of a lock that was granted to req, which was sent at start. If that fails, begin releases the
// lock.
func (c *Client) begin(
	ctx context.Context, trace *lockertrace.Trace, req Request, grant Grant, start time.Time, o options,
) (*lease, error) {
	req.Fence, req.Private = grant.Fence, grant.Private
	if grant.Token != "" {
		req.Token = grant.Token
	}
	if !grant.Sent.IsZero() {
		start = grant.Sent
	}
	l, err := c.hold(trace, req, start, o)
	if err != nil {
		_ = c.giveUp(ctx, req, err)
		return nil, err
	}
	if n, ok := c.backend.(LossNotifier); ok {
		l.listen(n)
	}
	return l, nil
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
		_ = l.finish(&LostError{LostClosed})
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
