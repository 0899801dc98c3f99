package node

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// Turn is a position in the queue for a Redlock, and then the turn to ask its nodes. One node of the Redlock keeps the
// queue. A turn is advice: an attempt out of turn is not refused. The methods are for one goroutine.
type Turn struct {
	// News receives true when the turn has come, or when it had come before and the lock is free now. It receives false
	// when messages have begun to arrive.
	News <-chan bool

	node   *Node
	keys   script.Keys
	inbox  *inbox
	id     string
	news   chan bool
	ticket int64
	rank   int  // the rank in the last answer to Ask
	still  int  // how often the rank was the same
	asked  bool // an Ask was sent, or may have been

	mu   sync.Mutex
	left *chore // what Leave has added; nil before
}

// Standing is an answer to Ask.
type Standing struct {
	Mine bool          // the turn has come
	Rank int           // how many waiters are before this one; 0 if the turn has come
	Left time.Duration // the remaining time of the lock on this node; 0: the lock is free
	// Label names the owner on this node, if it has one.
	Label string
	// Again is how long to wait at most before the next Ask. After that, the node would forget the turn or the
	// position, or the waiter before may have died, or another library may have released the lock.
	Again time.Duration
}

// nearPoll is how often the first waiter polls if it cannot be notified, while the queue moves. Waiters behind it poll
// less often, according to their rank. While the queue does not move, all of them slow down to untoldPoll. A waiter
// whose turn has come and who does not know it delays all others, so nearPoll must be short compared with a short hold.
const nearPoll = 5 * time.Millisecond

// NewTurn returns a Turn that has no position yet. Ask takes one. The Turn must be ended by Leave or Used.
func (n *Node) NewTurn(key string) *Turn {
	keys := n.keys(key)
	t := &Turn{node: n, keys: keys, inbox: n.inboxOf(keys), id: backend.NewToken(), news: make(chan bool, 1)}
	t.News = t.news
	t.inbox.expect(t.id, func(told bool) { ring(t.news, told) })
	return t
}

// ID identifies the turn. A release with this ID passes the turn on.
func (t *Turn) ID() string { return t.id }

// Ask takes a position, or keeps the one that the Turn has. It waits for the answer until ctx ends.
func (t *Turn) Ask(ctx context.Context) (Standing, error) {
	live := t.inbox.live()
	channel := ""
	if live {
		channel = t.inbox.channel
	}
	cmd := t.keys.Ask(t.id, script.MaxPositionTTL, t.ticket, channel)
	reply, err := t.node.pipeline.Do(ctx, cmd, t.node.timeout, t.late)
	t.asked = t.asked || !isNotSent(err)
	if err != nil {
		return Standing{}, t.node.fault(err)
	}
	s, err := t.decode(reply)
	if err != nil {
		return Standing{}, t.node.fault(err)
	}
	if !live {
		s.Again = min(s.Again, t.untold(s.Rank))
	}
	return s, nil
}

// decode reads the reply to Ask.
func (t *Turn) decode(reply drivers.Reply) (Standing, error) {
	r, err := script.ReadStanding(reply)
	if err != nil {
		return Standing{}, err
	}
	s := Standing{Mine: r.Status == script.Granted, Rank: r.Rank, Left: r.Left, Label: r.Label}
	s.Again = script.ClaimWindow/2 + rand.N(script.ClaimWindow/4)
	switch {
	case !s.Mine:
		s.Again = min(s.Again, r.Again)
		if t.ticket == 0 {
			t.ticket = r.Ticket
		}
	case s.Left > 0: // the holder may die
		s.Again = min(s.Again, s.Left+time.Millisecond)
	}
	if r.Poll {
		s.Again = min(s.Again, spread(foreignPoll))
	}
	return s, nil
}

// untold is how long to wait before the next Ask if the node cannot notify this waiter.
func (t *Turn) untold(rank int) time.Duration {
	if rank != t.rank {
		t.rank, t.still = rank, 0
	}
	d := min(untoldPoll, nearPoll*time.Duration(1+min(rank, 1000))<<min(t.still, 8))
	t.still++
	return spread(d)
}

// Used ends a Turn with which the lock was acquired. The release of the lock is given the ID.
func (t *Turn) Used() { t.inbox.ignore(t.id) }

// Leave gives up the position or the turn. In the same step it releases what req, the last attempt, may still have of
// the lock on this node, because a turn is only passed on where the lock is free. landed says that nothing of req is in
// flight to this node. If it is false, the release leaves a tombstone. Leave goes on in the background until the node
// has answered.
func (t *Turn) Leave(req *backend.Request, landed bool) {
	t.inbox.ignore(t.id)
	if !t.asked {
		return
	}
	c := t.node.undoing(req, landed, script.NotifyTurn)
	c.Turn, c.Leaves = t.id, true
	t.mu.Lock()
	t.left = &c
	t.mu.Unlock()
	t.node.repeat(c)
}

// late is told the outcome of an Ask that was not waited for. That Ask may have been executed after Leave, and have
// taken the position again. The node would then give the turn to a waiter that has left, and all others would wait
// until that turn ends.
func (t *Turn) late(drivers.Reply, error) {
	t.mu.Lock()
	c := t.left
	t.mu.Unlock()
	if c != nil {
		t.node.repeat(*c)
	}
}
