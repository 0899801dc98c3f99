package node

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// Turn is a place in the queue that one node keeps of those who want a lock of several nodes, and then the turn to ask
// for it. It is advice: whoever asks out of turn is not refused. Its methods are for one goroutine.
type Turn struct {
	// News says true when it is this one's turn, or has been and the lock is free now; false when it can be told from
	// now on.
	News <-chan bool

	node   *Node
	keys   script.Keys
	id     string
	news   chan bool
	ticket int64
	rank   int  // what Ask was answered last
	still  int  // how often that was the same
	asked  bool // the node may know of it

	mu   sync.Mutex
	left *cleanup // what Leave does; nil before
}

// Standing is where a Turn stands.
type Standing struct {
	Mine bool          // it is its turn
	Rank int           // how many are before it; 0 if it is its turn
	Left time.Duration // of the lock on this node; 0: free
	// Again is when to ask again, at the latest: by then the node would forget the turn or the place, or the one before
	// may have died.
	Again time.Duration
}

// nearPoll is how often the first of a queue looks that cannot be told, while the queue moves; the others less often,
// by how many are before them, and all of them by and by every untoldPoll. Whoever has the turn and does not know keeps
// everybody waiting, so it must not be long compared with a short hold.
const nearPoll = 5 * time.Millisecond

// NewTurn returns a place that is yet to be taken by Ask, and must be ended by Leave or Used.
func (n *Node) NewTurn(key string) *Turn {
	t := &Turn{node: n, keys: n.keys(key), id: locker.NewToken(), news: make(chan bool, 1)}
	t.News = t.news
	n.inbox.expect(t.id, func(told bool) { ring(t.news, told) })
	return t
}

// ID is what a release is given to pass the turn on, too.
func (t *Turn) ID() string { return t.id }

// Ask takes the place, or keeps it, until ctx ends.
func (t *Turn) Ask(ctx context.Context) (Standing, error) {
	live := t.node.inbox.live(t.node.inbox.name)
	channel := ""
	if live {
		channel = t.node.inbox.name
	}
	reply, err := t.node.do(ctx, t.keys.Ask(t.id, script.MaxLease, t.ticket, channel), t.node.timeout, t.late)
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
	s := Standing{Mine: r.Status == script.Granted, Rank: r.Rank, Left: r.Left}
	s.Again = script.ClaimWindow/2 + rand.N(script.ClaimWindow/4)
	switch {
	case !s.Mine:
		s.Again = min(s.Again, r.Again)
		if t.ticket == 0 {
			t.ticket = r.Ticket
		}
	case s.Left > 0: // its holder may die
		s.Again = min(s.Again, s.Left+time.Millisecond)
	}
	return s, nil
}

// untold is when to look again if nobody can tell.
func (t *Turn) untold(rank int) time.Duration {
	if rank != t.rank {
		t.rank, t.still = rank, 0
	}
	d := min(untoldPoll, nearPoll*time.Duration(1+min(rank, 1000))<<min(t.still, 8))
	t.still++
	return d/2 + rand.N(d/2)
}

// Used ends a Turn by which the lock was acquired: its release is given the ID.
func (t *Turn) Used() { t.node.inbox.ignore(t.id) }

// Leave gives up the place, or the turn, and what req, the last attempt, may still have of the lock on this node: both
// at once, because a turn is only handed on where the lock is free. landed says that nothing of req is under way to
// this node; otherwise it is also kept from landing later. It goes on in the background until the node has answered.
func (t *Turn) Leave(req *locker.Request, landed bool) {
	t.node.inbox.ignore(t.id)
	if !t.asked {
		return
	}
	c := t.node.undoing(req, landed, script.NotifyTurn)
	c.Turn, c.Leaves = t.id, true
	t.mu.Lock()
	t.left = &c
	t.mu.Unlock()
	t.node.cleaner.add(c)
}

// late is told of the outcome of an Ask that was not waited for. It may have been executed after the turn was left, and
// have taken the place again: the node would give the turn to nobody, and everybody would wait for that to end.
func (t *Turn) late(drivers.Reply, error) {
	t.mu.Lock()
	c := t.left
	t.mu.Unlock()
	if c != nil {
		t.node.cleaner.add(*c)
	}
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
