package node

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/lockertrace"
)

// fault is what becomes of a command. The zero fault is that it is executed and answered.
type fault struct {
	out, back time.Duration // beyond the usual
	lost      bool          // it is never executed
	mute      bool          // the answer is lost
	cut       bool          // instead of silence, the connection breaks
	twice     bool          // it is executed a second time, at once
	unsent    bool          // the connection could not be had
	refused   string        // the text with which the server refuses it; none: it does not
}

// client is one client.
type client struct {
	*locker.Client
	x    *testbed
	node *Node

	moment func() // called when a command leaves, is executed, is answered, and when the answer has come; set at the start

	mu    sync.Mutex
	fault func(kind string) fault
	kinds []string // of the commands that it has sent
}

func (p *client) network(ctx context.Context, cmds []drivers.Command,
	execute func() []drivers.Reply) ([]drivers.Reply, error) {
	var f fault
	p.mu.Lock()
	for _, cmd := range cmds {
		p.kinds = append(p.kinds, kindOf(cmd))
	}
	if p.fault != nil {
		for _, cmd := range cmds {
			if f == (fault{}) {
				f = p.fault(kindOf(cmd))
			}
		}
	}
	p.mu.Unlock()
	p.moment()
	if f.unsent {
		return nil, drivers.NotSent(errors.New("no connection"))
	}
	answer, broken := make(chan []drivers.Reply, 1), make(chan struct{})
	go func() {
		time.Sleep(oneWay + f.out)
		if !f.lost {
			p.moment()
			var replies []drivers.Reply
			if f.refused != "" {
				replies = slices.Repeat([]drivers.Reply{drivers.ServerError(f.refused)}, len(cmds))
			} else {
				replies = execute()
			}
			p.moment()
			if f.twice {
				execute()
			}
			time.Sleep(oneWay + f.back)
			if !f.mute {
				answer <- replies
				return
			}
		}
		if f.cut {
			close(broken)
		}
	}()
	select {
	case replies := <-answer:
		p.moment()
		return replies, nil
	case <-broken:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inject decides about the commands from now on, one after another; nil lets them all pass.
func (p *client) inject(f func(kind string) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// once gives the next command of a kind its fault.
func (p *client) once(kind string, f fault) {
	done := false
	p.inject(func(k string) fault {
		if k != kind || done {
			return fault{}
		}
		done = true
		return f
	})
}

// sent counts the commands of a kind that were sent; "" counts all.
func (p *client) sent(kind string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kinds {
		if k == kind || kind == "" {
			n++
		}
	}
	return n
}

// call is one Lock under way.
type call struct {
	x      *testbed
	done   chan struct{}
	lease  locker.Lease
	err    error
	at     time.Time // when it returned
	cancel context.CancelFunc
	wakes  []lockertrace.WakeReason
}

// lock begins to lock k and returns when the client waits, has the lock or sleeps otherwise.
func (p *client) lock(opts ...locker.Option) *call {
	c := &call{x: p.x, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(p.x.Context())
	c.cancel = cancel
	ctx = lockertrace.With(ctx, &lockertrace.Trace{Woken: func(w lockertrace.Wake) {
		c.wakes = append(c.wakes, w.Reason)
	}})
	go func() {
		defer close(c.done)
		defer cancel()
		c.lease, c.err = p.Lock(ctx, "k", opts...)
		c.at = time.Now()
	}()
	p.x.settle()
	return c
}

func (c *call) isDone() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// gets waits until the call has the lock, for limit at most, and checks that the lease ends before the key does.
func (c *call) gets(limit time.Duration) locker.Lease {
	c.x.Helper()
	select {
	case <-c.done:
	case <-time.After(limit):
		c.x.Fatalf("still waits after %v", limit)
	}
	if c.err != nil {
		c.x.Fatal(c.err)
	}
	c.x.sound(c.lease)
	return c.lease
}

// waits checks that the call goes on waiting for d.
func (c *call) waits(d time.Duration) {
	c.x.Helper()
	time.Sleep(d)
	if c.isDone() {
		c.x.Fatalf("returned %v, %v while it should wait", c.lease, c.err)
	}
}

// must locks k, which is free.
func (p *client) must(opts ...locker.Option) locker.Lease {
	p.x.Helper()
	l, err := p.TryLock(p.x.Context(), "k", opts...)
	if err != nil {
		p.x.Fatal(err)
	}
	return l
}

// warm lets the client wait once, for another key, so that its subscription is there.
func (p *client) warm() {
	p.x.Helper()
	holder := p.x.client()
	l, err := holder.TryLock(p.x.Context(), "warm")
	if err != nil {
		p.x.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { p.x.unlock(l) })
	mine, err := p.Lock(p.x.Context(), "warm")
	if err != nil {
		p.x.Fatal(err)
	}
	p.x.unlock(mine)
	if !p.node.inbox.live() {
		p.x.Fatal("the subscription is not there")
	}
}

// rests waits until a waiter's next request for the lock has been answered: then none is under way for a while.
func (p *client) rests() {
	p.x.Helper()
	n, end := p.sent("enqueue"), time.Now().Add(time.Minute)
	for ; p.sent("enqueue") == n; time.Sleep(oneWay) {
		if time.Now().After(end) {
			p.x.Fatal("it sends no request for a minute")
		}
	}
	time.Sleep(3 * oneWay)
}

// refused checks that the lock cannot be had at once.
func (p *client) refused() {
	p.x.Helper()
	if l, err := p.TryLock(p.x.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		p.x.Errorf("TryLock answers %v, %v, want ErrHeld", l, err)
	}
}
