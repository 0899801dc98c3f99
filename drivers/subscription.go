package drivers

import (
	"context"
	"sync"
)

// Feed is one connection of a client that receives published messages. Its maker knows the [Listener].
type Feed interface {
	// Receive hands the listener what comes, until the connection fails, the server refuses something or Close is called.
	// It returns why and calls nobody any more. Lost is not its business.
	Receive() error
	// Subscribe and Unsubscribe send something, one call at a time, with at least one channel.
	Subscribe(channels []string) error
	Unsubscribe(channels []string) error
	// Close lets all of the above return at once, whatever the server does. It can come at any time, and more than once.
	Close()
}

// Subscribe makes a [Subscriber] of what differs between clients. It calls connect, which may be late when its context
// ends: Subscribe does not wait for it then, and closes what it comes back with.
func (g *Gate) Subscribe(ctx context.Context, l Listener, connect func(context.Context) (Feed, error)) (Subscription, error) {
	if err := g.Enter(ctx); err != nil {
		return nil, err
	}
	opening, abort := context.WithCancel(ctx)
	defer abort()
	sub := &subscription{abort: abort, done: make(chan struct{})}
	if !g.add(sub) {
		return nil, ErrClosed
	}
	opened := make(chan error) // without room, so that either both sides know of the feed or it is closed
	go func() {
		feed, err := connect(opening)
		if err == nil {
			err = sub.attach(feed)
		}
		select {
		case opened <- err:
			if err == nil {
				sub.receive(l)
				g.forget(sub)
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
		err = ctx.Err() // the connection was broken off, and says so in terms that help nobody
	}
	g.forget(sub)
	close(sub.done)
	return nil, sub.end(err)
}

func (g *Gate) add(s *subscription) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Load() {
		return false
	}
	if g.subscriptions == nil {
		g.subscriptions = make(map[*subscription]struct{})
	}
	g.subscriptions[s] = struct{}{}
	return true
}

func (g *Gate) forget(s *subscription) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.subscriptions, s)
}

type subscription struct {
	abort   context.CancelFunc // ends the opening
	sending sync.Mutex
	done    chan struct{} // closed when the listener has had its last call

	mu   sync.Mutex
	feed Feed  // set once
	err  error // why it has ended
}

// attach adds the feed, unless the end came first.
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

// end ends the subscription and returns the reason, which is err unless it had ended before.
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
