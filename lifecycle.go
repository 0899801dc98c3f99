package locker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// closeGrace is how long Close waits for the attempts in progress before it closes the backend. An attempt that is
// granted meanwhile needs the backend to release the lock.
const closeGrace = 250 * time.Millisecond

// closes reports whether Close has begun. Leases are over from then on, although Close ends them one after the other,
// and runs hooks meanwhile.
func (c *Client) closes() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// enter counts a call in t. It returns false if the Client is closed.
func (c *Client) enter(t *tally) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	t.add()
	return true
}

// admit is enter for an attempt to acquire locks. Its error says why there must be none.
func (c *Client) admit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.refusal()
	if err == nil {
		c.attempts.add()
	}
	return err
}

// refusal returns why the Client acquires no locks any more, or nil. Call with mu held.
func (c *Client) refusal() error {
	if c.closed {
		return ErrClosed
	}
	return context.Cause(c.open)
}

// refusing returns err, or why the Client acquires no locks any more if that is why a wait has ended with ErrClosed.
func (c *Client) refusing(err error) error {
	if !errors.Is(err, ErrClosed) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if why := c.refusal(); why != nil {
		return why
	}
	return err
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

// Drain ends the work of a program in good order, before [Client.Close]. It acquires no locks from now on: Lock and
// TryLock fail with [ErrDraining], also calls that wait already, in whatever queue. Leases stay as they are. They are
// valid, and renewed, until they are unlocked. Drain returns when no lease is held any more, and no call of Unlock is
// under way. It then returns nothing. A release that the store has not answered is not waited for longer than by Unlock
// itself, whose error says so: such a lock may stay until its TTL ends. If ctx ends before that, Drain returns the
// leases that are still held, for a log for example. They stay as they are until Close, which ends them, and so Drain,
// too.
//
//	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
//	defer cancel()
//	for _, lease := range l.Drain(ctx) {
//		log.Printf("%s is still locked, and becomes free when its TTL ends", lease.Key())
//	}
//	return l.Close()
//
// A lock that is granted while the drain begins, to a request that was sent before, is released again. A call that
// acquires several locks, such as [LockAll], gives back those that it has. A holder gets no further locks either, and
// cannot upgrade its lease of package rwlock. A call whose request the store does not answer returns when the backend
// gives it up, as always, or when its own context ends. A call that pauses between two attempts, as LockAll does after
// a loss, learns of it after up to a second.
//
// The leases are those of the Client: middleware may have wrapped them, and a key of packages semaphore and rwlock may
// have several. Whoever calls Drain while it holds a lease, or within a hook, waits for itself. There is no way back: a
// second call of Drain only waits, and with a context that has ended it only looks.
func (c *Client) Drain(ctx context.Context) (held []Lease) {
	c.mu.Lock()
	c.drain(ErrDraining) // with mu held: what was granted before is counted
	c.mu.Unlock()
	for _, t := range []*tally{&c.grants, &c.attempts} { // whoever ends a grant to release it is an attempt before
		select {
		case <-t.none():
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	grants := slices.Clone(c.schedule.grants)
	c.mu.Unlock()
	for _, g := range grants {
		g.mu.Lock()
		l := g.lease
		g.mu.Unlock()
		if l.Err() == nil {
			held = append(held, l)
		}
	}
	slices.SortFunc(held, func(a, b Lease) int { return strings.Compare(a.Key(), b.Key()) })
	return held
}

// Draining returns a channel that is closed when Drain begins. Use the function [Draining] to find it behind
// middleware.
func (c *Client) Draining() <-chan struct{} { return c.draining.Done() }

// Draining returns a channel that is closed when the Client of l begins to drain, for work that should end early then.
// It finds the Client behind middleware, as [As] does. If there is none, the channel is nil, which is never ready.
func Draining(l Locker) <-chan struct{} {
	if c, ok := As[interface{ Draining() <-chan struct{} }](l); ok {
		return c.Draining()
	}
	return nil
}

// Close closes the Client and, if it is an io.Closer, the backend. Waiting calls of Lock return [ErrClosed]. Leases
// that are still held end as lost, with the reason [LostClosed], and are no longer renewed.
//
// Close does not release locks, because the code that they protect may still be running. They end with their TTL. Call
// Unlock before Close to release them earlier.
//
// If the store does not answer, Close may take some seconds: the backend's own timeout, which is 5 s by default, and a
// second more where releases that were not answered get one more try.
//
// If a hook panics, Close panics with that value in the end. Closing twice is harmless. The second call waits for the
// first to end and returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.gone
		return nil
	}
	defer close(c.gone)
	c.closed = true
	c.shut(ErrClosed)
	close(c.closing)
	if c.schedule.timer != nil {
		c.schedule.timer.Stop()
	}
	grants := slices.Clone(c.schedule.grants)
	c.mu.Unlock()

	var panicked any // in a hook, which must not keep the others from theirs, nor the backend from its Close
	defer func() {
		if panicked != nil {
			panic(panicked)
		}
	}()
	leases := make([]*lease, len(grants))
	for i, g := range grants {
		leases[i], _ = g.conclude(nil, &LostError{Reason: LostClosed}, 0)
	}
	for i, g := range grants {
		if p := recovered(func() { _ = g.settle(leases[i]) }); panicked == nil {
			panicked = p
		}
	}
	grace, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	for _, t := range []*tally{&c.attempts, &c.looks} {
		select {
		case <-t.none():
		case <-grace.Done(): // closing the backend interrupts them
		}
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

// recovered calls f, and returns what it has panicked with, or nil.
func recovered(f func()) (panicked any) {
	defer func() { panicked = recover() }()
	f()
	return nil
}

// tally counts what is in progress.
type tally struct {
	n atomic.Int64

	mu   sync.Mutex
	zero chan struct{} // closed when the number is 0; nil if nobody waits for that
}

func (t *tally) add() { t.n.Add(1) }

func (t *tally) done() {
	if t.n.Add(-1) == 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.tell()
	}
}

// none returns a channel that is closed when the number is 0, at once if it is.
func (t *tally) none() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.tell()
	return zero
}

// tell tells those who wait if the number is 0: others may be counted by now. Call with mu held.
func (t *tally) tell() {
	if t.zero != nil && t.n.Load() == 0 {
		close(t.zero)
		t.zero = nil
	}
}
