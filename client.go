package locker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Client turns a [Backend] into a [Locker]: it waits, renews, notices loss and releases. Make one with [NewClient], or
// with the constructor of a backend's package, which does. A Client is safe for concurrent use and meant to be shared.
type Client struct {
	backend Backend
	queuer  Queuer // backend, if it is one; else nil
	gate    gate
	closing chan struct{} // closed when Close begins
	gone    chan struct{} // closed when Close has ended

	mu       sync.Mutex
	schedule schedule // of what is held
	closed   bool     // Close has begun
	joining  bool     // Close waits for background
	// Close waits for attempts for a while, before it closes the backend. Add under mu while not closed, or in an attempt.
	attempts sync.WaitGroup
	// Renewals and leases given up; Close waits for them after it has closed the backend. Add under mu while not joining.
	background sync.WaitGroup
}

// closeGrace is how long Close lets attempts under way come to an end before it closes the backend: one that is granted
// now has to be released.
const closeGrace = 250 * time.Millisecond

// NewClient returns a Client of b. Closing it closes b, if b is an io.Closer.
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
func (c *Client) Lock(ctx context.Context, key string, opts ...Option) (Lease, error) {
	o := newOptions(opts)
	err := o.validate(key)
	if err == nil {
		var l *lease
		if l, err = c.lock(ctx, key, o); err == nil {
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
		if l, err = c.attempt(ctx, key, o, nil); err == nil {
			return l, nil
		}
		err = withContext(ctx, err)
	}
	return nil, &Error{"trylock", key, err}
}

// attempt acquires key once, or, for a caller who has its turn, waits for it in the store's queue, if it has one. The error is what was
// seen of the lock, or ctx's own if it had ended before anything was sent.
func (c *Client) attempt(ctx context.Context, key string, o options, turn *line) (*lease, error) {
	if !c.enter(&c.attempts) {
		return nil, ErrClosed
	}
	defer c.attempts.Done()
	if err := ended(ctx); err != nil {
		return nil, err
	}
	req := Request{Key: key, Token: NewToken(), TTL: o.ttl}
	trace := TraceFrom(ctx)
	var grant Grant
	var err error
	start := time.Now()
	if turn == nil || c.queuer == nil {
		grant, err = c.backend.Acquire(ctx, req)
	} else {
		req.Closing = c.closing
		turn.trace = trace
		req.Waiting, req.Failing, req.Patience = turn.waits, turn.fails, o.patience
		grant, err = c.queuer.Queue(ctx, req)
		req.Closing, req.Waiting, req.Failing = nil, nil, nil
	}
	err = fromBackend(err) // errors.go
	trace.attempted(start, err)
	if err != nil {
		return nil, err
	}
	req.Fence, req.Private = grant.Fence, grant.Private
	if grant.Token != "" {
		req.Token = grant.Token
	}
	if !grant.Sent.IsZero() {
		start = grant.Sent
	}
	l := newLease(ctx, c, req, start, o)
	if err := l.begin(); err != nil {
		l.giveUp(ctx, err)
		return nil, err
	}
	return l, nil
}

// enter adds to a group that Close waits for, unless the Client is closed.
func (c *Client) enter(g *sync.WaitGroup) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	g.Add(1)
	return true
}

// join adds to background, unless Close is past waiting for it.
func (c *Client) join() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joining {
		return false
	}
	c.background.Add(1)
	return true
}

// hold registers l as held, and to be ended after rest, unless the Client is closed.
func (c *Client) hold(l *lease, rest time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if c.schedule.timer == nil { // not in NewClient, so that tests in virtual time can use a Client made outside
		c.schedule.timer = time.AfterFunc(time.Hour, c.tend)
	}
	due := never
	if l.renews {
		due = l.start.Add(l.req.TTL / renewPart)
	}
	c.schedule.add(l, due)
	l.expiry = time.AfterFunc(rest, func() { _ = l.Err() }) // which looks at the clock: firing late ends no lease early
	return true
}

// forget undoes hold.
func (c *Client) forget(l *lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedule.remove(l)
	l.expiry.Stop()
}

// Close ends the Client: waiting Lock calls return [ErrClosed], held leases end (their Done is closed, their Err is a
// [LostError] with the reason [LostClosed]) and are no longer renewed, and the backend is closed if it can be. Locks
// still held are not released, because the code they protect may still be running; they end with their TTL. Unlock
// before Close. Closing twice is harmless: the second call returns nil, when the first has ended.
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
	case <-grace.C: // the backend interrupts them
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

// NewToken returns a fresh owner value: 20 random bytes, printable. It is for a [Queuer] that makes several attempts.
func NewToken() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	var text [27]byte
	base64.RawURLEncoding.Encode(text[:], b[:])
	return string(text[:])
}
