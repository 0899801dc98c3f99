package drivers

import (
	"context"
	"sync"
)

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
