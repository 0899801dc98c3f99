package locker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"sync"
	"time"
)

// Client turns a [Backend] into a [Locker]: it waits, renews, notices loss and releases. Make one with [NewClient], or
// with the constructor of a backend's package, which does. A Client is safe for concurrent use and meant to be shared.
type Client struct {
	backend Backend
	closing chan struct{} // closed by Close

	mu     sync.Mutex
	leases map[*lease]struct{} // held now; nil once closed
	busy   sync.WaitGroup      // renewals; Add under mu while leases != nil
}

// NewClient returns a Client of b. Closing it closes b, if b is an io.Closer.
func NewClient(b Backend) *Client {
	return &Client{
		backend: b,
		closing: make(chan struct{}),
		leases:  make(map[*lease]struct{}),
	}
}

// Lock implements [Locker].
func (c *Client) Lock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	o := newOptions(opts)
	err := o.validate(key)
	if err == nil {
		var l *lease
		if l, err = c.wait(ctx, key, &o); err == nil {
			return l, nil
		}
	}
	return nil, &Error{"lock", key, err}
}

// TryLock implements [Locker].
func (c *Client) TryLock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	o := newOptions(opts)
	err := o.validate(key)
	if err == nil {
		var l *lease
		if l, err = c.attempt(ctx, key, &o); err == nil {
			return l, nil
		}
		err = withContext(ctx, err)
	}
	return nil, &Error{"trylock", key, err}
}

// attempt acquires key once. The error is what was seen of the lock, or ctx's own if it had ended before
// anything was sent.
func (c *Client) attempt(ctx context.Context, key string, o *options) (*lease, error) {
	if c.closed() {
		return nil, ErrClosed
	}
	if err := ended(ctx); err != nil {
		return nil, err
	}
	req := Request{Key: key, Token: newToken(), TTL: o.ttl}
	start := time.Now()
	grant, err := c.backend.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	req.Fence, req.Private = grant.Fence, grant.Private
	l := newLease(c, req, start, !o.noRenewal)
	if err := l.begin(); err != nil {
		l.giveUp(ctx)
		return nil, err
	}
	return l, nil
}

func (c *Client) closed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// hold registers l as held, unless the Client is closed.
func (c *Client) hold(l *lease) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leases == nil {
		return false
	}
	c.leases[l] = struct{}{}
	return true
}

// forget undoes hold.
func (c *Client) forget(l *lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leases, l)
}

// work runs f unless the Client is closed; Close waits for it.
func (c *Client) work(f func()) {
	c.mu.Lock()
	if c.leases == nil {
		c.mu.Unlock()
		return
	}
	c.busy.Add(1)
	c.mu.Unlock()
	defer c.busy.Done()
	f()
}

// Close ends the Client: waiting Lock calls return [ErrClosed], held leases end (their Done is closed, their Err is a
// [LostError] with the reason [LostClosed]) and are no longer renewed, and the backend is closed if it can be. Locks
// still held are not released, because the code they protect may still be running; they end with their TTL. Unlock
// before Close. Closing twice is harmless.
func (c *Client) Close() error {
	c.mu.Lock()
	leases := c.leases
	if leases == nil {
		c.mu.Unlock()
		return nil
	}
	c.leases = nil
	close(c.closing)
	c.mu.Unlock()

	for l := range leases {
		l.end(&LostError{LostClosed})
	}
	var err error
	if closer, ok := c.backend.(io.Closer); ok {
		err = closer.Close()
	}
	c.busy.Wait()
	if err != nil {
		return fmt.Errorf("locker: close: %w", err)
	}
	return nil
}

// newToken returns a fresh owner value: 20 random bytes, printable.
func newToken() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return base64.RawURLEncoding.EncodeToString(b[:])
}
