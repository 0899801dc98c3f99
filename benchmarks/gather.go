package main

import (
	"context"
	"runtime"
	"time"

	"github.com/golocker/locker/drivers"
)

// gatherer is a driver for many callers. It sends what all of them want in one pipeline, when no further caller has
// come for gatherQuiet. Reading and writing are then a small part of the server's work, and what is left is the work of
// the commands. The server is idle while the callers are busy, so neither takes the processor from the other.
type gatherer struct {
	drivers.Driver
	calls chan *gatheredCall
	stop  chan struct{}
	ended chan struct{}
}

// gatheredCall is one call of Do.
type gatheredCall struct {
	cmds    []drivers.Command
	replies []drivers.Reply
	err     error
	done    chan struct{}
}

const gatherQuiet = 100 * time.Microsecond

func newGatherer(d drivers.Driver) *gatherer {
	g := &gatherer{d, make(chan *gatheredCall), make(chan struct{}), make(chan struct{})}
	go g.run()
	return g
}

// Do waits for the reply even if ctx ends. The time of one pipeline bounds it.
func (g *gatherer) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	c := &gatheredCall{cmds: cmds, done: make(chan struct{})}
	select {
	case g.calls <- c:
	case <-g.stop:
		return nil, drivers.ErrClosed
	}
	<-c.done
	return c.replies, c.err
}

// Close does nothing, because several clients share the gatherer: see end.
func (g *gatherer) Close() error { return nil }

func (g *gatherer) end() {
	close(g.stop)
	<-g.ended
	_ = g.Driver.Close()
}

func (g *gatherer) run() {
	defer close(g.ended)
	for {
		var calls []*gatheredCall
		select {
		case c := <-g.calls:
			calls = append(calls, c)
		case <-g.stop:
			return
		}
		// A timer would be later by up to a millisecond.
		for last := time.Now(); time.Since(last) < gatherQuiet; {
			select {
			case c := <-g.calls:
				calls, last = append(calls, c), time.Now()
			default:
				runtime.Gosched()
			}
		}
		g.send(calls)
	}
}

func (g *gatherer) send(calls []*gatheredCall) {
	var cmds []drivers.Command
	for _, c := range calls {
		cmds = append(cmds, c.cmds...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), longTimeout)
	defer cancel()
	replies, err := g.Driver.Do(ctx, cmds...)
	for _, c := range calls {
		if c.err = err; err == nil {
			c.replies, replies = replies[:len(c.cmds)], replies[len(c.cmds):]
		}
		close(c.done)
	}
}

// gathered returns an opener of one session with several clients, which share a gatherer. With as many clients as
// goroutines no client has two commands to send at once. With one client the client may join the commands.
func gathered(goroutines, clients int, open func(drivers.Driver) (session, error)) opener {
	return func(addrs []string, l limits) (session, error) {
		d, end, err := newDriver("redigo", addrs[0], l)
		if err != nil {
			return nil, err
		}
		g := newGatherer(d)
		s := &gatheredSession{byKey: map[string]session{}, end: func() { g.end(); end() }}
		for range clients {
			client, err := open(g)
			if err != nil {
				s.Close()
				return nil, err
			}
			s.clients = append(s.clients, client)
		}
		for i := range goroutines {
			s.byKey[ownKey(i)] = s.clients[i%clients]
		}
		return s, nil
	}
}

// gatheredSession locks each key by the client of the key's goroutine.
type gatheredSession struct {
	clients []session
	byKey   map[string]session
	end     func()
}

func (s *gatheredSession) Lock(ctx context.Context, key string) (held, error) {
	return s.byKey[key].Lock(ctx, key)
}

func (s *gatheredSession) Close() {
	for _, c := range s.clients {
		c.Close()
	}
	s.end()
}
