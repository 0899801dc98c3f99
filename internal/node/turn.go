package node

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// Turn is a place in the queue that one node keeps of those who want a lock of several nodes, and then the turn to ask
// for it. It is advice: whoever asks out of turn is not refused. Its methods are for one goroutine.
type Turn struct {
	// News says true when it is this one's turn, or has been and the lock is free now; false when it can be told from
	// now on.
	News <-chan bool

	node   *Node
	keys   keys
	id     string
	news   chan bool
	ticket int64
}

// Standing is where a Turn stands.
type Standing struct {
	Mine bool          // it is its turn
	Left time.Duration // of the lock on this node; 0: free
	// Again is when to ask again, at the latest: by then the node would forget the turn or the place, or the one before
	// may have died.
	Again time.Duration
}

// NewTurn returns a place that is yet to be taken by Ask, and must be left by Leave.
func (n *Node) NewTurn(key string) *Turn {
	t := &Turn{node: n, keys: keysOf(n.prefix + key), id: locker.NewToken(), news: make(chan bool, 1)}
	t.News = t.news
	n.inbox.expect(t.id, func(told bool) { ring(t.news, told) })
	return t
}

// ID is what a release passes on to give the turn on, too.
func (t *Turn) ID() string { return t.id }

// Ask takes the place, or keeps it, until ctx ends.
func (t *Turn) Ask(ctx context.Context) (Standing, error) {
	live := t.node.inbox.live(t.node.inbox.name)
	channel := ""
	if live {
		channel = t.node.inbox.name
	}
	ready := make(chan *Call, 1)
	k := &t.keys
	c := t.node.start(ready, 0, turnScript, turnScript.command([]string{k.lock, k.turn(), k.queue(), k.waiters()},
		t.id, milliseconds(maxLease)+":"+strconv.FormatInt(t.ticket, 10)+":"+channel))
	err := t.node.wait(ctx, c, ready, t.node.queue.timeout, nil)
	if err == nil {
		err = c.err
	}
	if err != nil {
		return Standing{}, t.node.fault(err)
	}
	s, err := t.decode(c.reply)
	if err != nil {
		return Standing{}, t.node.fault(err)
	}
	if !s.Mine && !live {
		s.Again = min(s.Again, untoldPoll/2+rand.N(untoldPoll/2))
	}
	return s, nil
}

// decode reads the reply of turn.lua.
func (t *Turn) decode(reply drivers.Reply) (Standing, error) {
	n, err := integers(reply)
	if err != nil {
		return Standing{}, err
	}
	half := claimWindow/2 + rand.N(claimWindow/4)
	switch {
	case len(n) == 2 && n[0] == 1:
		return Standing{Mine: true, Left: span(n[1]), Again: half}, nil
	case len(n) == 5 && n[0] == 0:
		if t.ticket == 0 {
			t.ticket = n[4]
		}
		return Standing{Left: span(n[1]), Again: min(half, span(n[3]))}, nil
	}
	return Standing{}, unexpected(reply)
}

// Leave gives up the place, or the turn if passed on is false: a release that was given the ID has done so already. It
// does not wait; a place that is not left in time is forgotten by the node.
func (t *Turn) Leave(passedOn bool) {
	t.node.inbox.ignore(t.id)
	if passedOn {
		return
	}
	k := &t.keys
	t.node.start(make(chan *Call, 1), 0, leaveTurnScript,
		leaveTurnScript.command([]string{k.lock, k.turn(), k.queue(), k.waiters()}, t.id))
}

// ring passes a piece of news on without blocking. To be told counts for more than what has not been looked at yet.
func ring(news chan bool, told bool) {
	if told {
		select {
		case <-news:
		default:
		}
	}
	select {
	case news <- told:
	default:
	}
}

// span is a time in ms as the scripts answer it: negative if there is none.
func span(ms int64) time.Duration { return max(0, time.Duration(ms)*time.Millisecond) }

// integers reads a reply that consists of integers only.
func integers(reply drivers.Reply) ([]int64, error) {
	if e, ok := reply.(drivers.ServerError); ok {
		return nil, e
	}
	r, ok := reply.([]drivers.Reply)
	n := make([]int64, len(r))
	for i := range r {
		var isInt bool
		n[i], isInt = r[i].(int64)
		ok = ok && isInt
	}
	if !ok {
		return nil, unexpected(reply)
	}
	return n, nil
}
