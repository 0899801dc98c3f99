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

// Feed is one connection of a client that receives published messages. It is what [Lifecycle.Subscribe] needs from a
// driver. The driver passes the [Listener] to it when it creates it.
type Feed interface {
	// Receive calls Subscribed and Message of the listener until the connection fails, the server refuses a command or
	// Close is called. It then returns the reason and does not call the listener any more. It does not call Lost.
	Receive() error

	// Subscribe and Unsubscribe send a command with at least one channel. They are called one at a time.
	Subscribe(channels []string) error
	Unsubscribe(channels []string) error

	// Close makes all other methods return at once, whatever the server does. It may be called at any time, and more
	// than once.
	Close()
}

// Subscribe implements [Subscriber] with a function connect that opens a connection. connect may return late when its
// context ends. Subscribe does not wait for it then, and closes the Feed that it returns.
func (lc *Lifecycle) Subscribe(
	ctx context.Context, l Listener, connect func(context.Context) (Feed, error),
) (Subscription, error) {
	if err := lc.Enter(ctx); err != nil {
		return nil, err
	}
	opening, abort := context.WithCancel(ctx)
	defer abort()
	sub := &subscription{abort: abort, done: make(chan struct{})}
	if !lc.add(sub) {
		return nil, ErrClosed
	}
	opened := make(chan error) // unbuffered: either both sides know about the feed, or it is closed
	go func() {
		feed, err := connect(opening)
		if err == nil {
			err = sub.attach(feed)
		}
		select {
		case opened <- err:
			if err == nil {
				sub.receive(l)
				lc.forget(sub)
			}
		case <-opening.Done():
			if err == nil {
				feed.Close()
			}
		}
	}()
	var err error
	select {
	case err = <-opened:
		if err == nil {
			return sub, nil
		}
	case <-opening.Done():
	}
	if ctx.Err() != nil {
		err = ctx.Err() // the connection's own error only says that it was closed
	}
	lc.forget(sub)
	close(sub.done)
	return nil, sub.end(err)
}

func (lc *Lifecycle) add(s *subscription) bool {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if lc.closed.Load() {
		return false
	}
	if lc.subscriptions == nil {
		lc.subscriptions = make(map[*subscription]struct{})
	}
	lc.subscriptions[s] = struct{}{}
	return true
}

func (lc *Lifecycle) forget(s *subscription) {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	delete(lc.subscriptions, s)
}

type subscription struct {
	abort   context.CancelFunc // ends the call of connect
	sending sync.Mutex
	done    chan struct{} // closed when the listener has had its last call

	mu   sync.Mutex
	feed Feed  // set once
	err  error // why the subscription has ended; nil while it is open
}

// attach sets the feed. If the subscription has already ended, it closes the feed and returns the reason.
func (s *subscription) attach(feed Feed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		feed.Close()
		return s.err
	}
	s.feed = feed
	return nil
}

func (s *subscription) receive(l Listener) {
	err := s.feed.Receive()
	l.Lost(s.end(err))
	close(s.done)
}

// end ends the subscription. It returns the reason of its end, which is err unless it had ended before.
func (s *subscription) end(err error) error {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	err = s.err
	feed := s.feed
	s.mu.Unlock()
	s.abort()
	if feed != nil {
		feed.Close()
	}
	return err
}

func (s *subscription) Subscribe(channels ...string) error { return s.send(s.feed.Subscribe, channels) }

func (s *subscription) Unsubscribe(channels ...string) error {
	return s.send(s.feed.Unsubscribe, channels)
}

func (s *subscription) send(command func([]string) error, channels []string) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil || len(channels) == 0 {
		return err
	}
	if err := command(channels); err != nil {
		return s.end(err)
	}
	return nil
}

func (s *subscription) Close() error {
	_ = s.end(ErrClosed)
	<-s.done
	return nil
}

// Await returns the result of call, or ctx's error as soon as ctx ends. It is for clients whose calls can outlast the
// deadline of their context.
//
// If ctx ends first, call is abandoned: it goes on in a goroutine until the client's own time-out ends it, and its
// result is dropped. The outcome of the commands is then unknown, and the arguments of call may be in use until it
// ends.
func Await(ctx context.Context, call func() ([]Reply, error)) ([]Reply, error) {
	if ctx.Done() == nil {
		end, ok := ctx.Deadline()
		if !ok {
			return call()
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), end)
		defer cancel()
	}
	type result struct {
		replies []Reply
		err     error
	}
	done := make(chan result, 1) // buffered, so that the goroutine of an abandoned call can end
	go func() {
		replies, err := call()
		done <- result{replies, err}
	}()
	select {
	case r := <-done:
		return r.replies, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
