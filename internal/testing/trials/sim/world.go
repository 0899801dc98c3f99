package sim

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

// world is one deployment.
type world struct {
	Options
	testing.TB
	history *history.History
	nodes   []*server
	clients []*client
	keys    []string

	registers map[string]*history.Register // by key
	twins     map[string]*history.Register // the same, not fenced

	underWay crowd // messages, and what happens to nodes and clients

	mu         sync.Mutex
	calm       bool // no more faults
	counts     map[string]int
	violations []history.Violation
	log        history.NodeLog
	told       []string
}

// server is one node and the process that it runs in.
type server struct {
	*simnode.Node
	world *world
	id    int
	dice  *dice // for published messages

	mu   sync.Mutex
	down bool
	boot int // how often it was started
	life int // how often it has lost data
	// forgotAt is when it last did.
	forgotAt time.Duration
	stopped  chan struct{} // closed when it goes on; nil while it runs
}

// client is one process.
type client struct {
	locker.Locker // recorded
	client        *locker.Client
	world         *world
	id            int
	links         []*link
	direct        bool // its drivers keep to deadlines

	mu      sync.Mutex
	dead    bool
	stopped chan struct{} // closed when it goes on; nil while it runs
}

func newWorld(t testing.TB, o Options) *world {
	w := &world{
		log:     history.NodeLog{Rest: o.guard()},
		Options: o, TB: t, history: history.New(), keys: o.keys(), counts: map[string]int{},
		registers: map[string]*history.Register{}, twins: map[string]*history.Register{},
	}
	for _, key := range w.keys {
		w.registers[key], w.twins[key] = &history.Register{Fenced: true}, &history.Register{}
	}
	d := newDice(o.Seed, 1)
	for i := range o.Nodes {
		w.nodes = append(w.nodes, w.newServer(i, d))
	}
	w.bootstrap()
	for i := range o.Clients {
		w.clients = append(w.clients, w.newClient(i))
	}
	return w
}

func (w *world) newServer(i int, d *dice) *server {
	s := &server{Node: simnode.New(), world: w, id: i, dice: newDice(w.Seed, 100+uint64(i))}
	s.Skew = d.between(-w.Skew, w.Skew)
	s.Drift = w.Drift * (2*float64(d.upTo(time.Second))/float64(time.Second) - 1)
	s.Deliver = s.publish
	s.Observe = s.observe
	return s
}

func (w *world) newClient(i int) *client {
	c := &client{world: w, id: i, direct: i < w.Direct}
	for j, s := range w.nodes {
		l := &link{client: c, server: s, dice: newDice(w.Seed, 10_000+100*uint64(i)+uint64(j))}
		c.links = append(c.links, l)
	}
	ds := c.drivers()
	if !w.quorum() {
		c.client = single.New(ds[0], single.Timeout(w.Timeout), single.Guard(w.guard()))
	} else {
		c.client = redlock.New(ds, redlock.Timeout(w.Timeout), redlock.Budget(2*w.Timeout), redlock.Guard(w.guard()),
			redlock.Logger(slog.New(slog.DiscardHandler)))
	}
	c.Locker = w.history.Client(i, c.client)
	return c
}

// bootstrap says, in every second episode with the guard, that the nodes are new. In the others, and behind a cluster,
// they rest first.
func (w *world) bootstrap() {
	if w.guard() == 0 || w.Cluster || w.Seed%2 == 0 {
		return
	}
	var ds []drivers.Driver
	for _, s := range w.nodes {
		ds = append(ds, s.Driver(nil))
	}
	var err error
	if w.quorum() {
		err = redlock.Bootstrap(w.Context(), ds, redlock.Guard(w.guard()))
	} else {
		err = single.Bootstrap(w.Context(), ds[0], single.Guard(w.guard()))
	}
	if err != nil {
		w.Fatal(err)
	}
	for _, d := range ds {
		_ = d.Close()
	}
}

// trace notes what happens, for after the episode: writing it out would change what happens. mu is held.
func (w *world) trace(format string, args ...any) {
	if w.Trace {
		w.told = append(w.told, fmt.Sprintf("%12v ", w.history.Now())+fmt.Sprintf(format, args...))
	}
}

// happens decides whether a fault happens that comes with the given number of chances, and counts it.
func (w *world) happens(d *dice, k fault, chances float64) bool {
	if w.Factors[k] == 0 || !d.chance(kinds[k].chance*float64(w.Factors[k])*chances) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calm {
		return false
	}
	w.counts[kinds[k].name]++
	w.trace("%s", kinds[k].name)
	return true
}

func (w *world) count(what string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what] += n
}

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

func (w *world) violated(rule, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, history.Violation{Rule: rule, Text: text})
}

func (s *server) observe(step simnode.Step) {
	w := s.world
	state := func(st simnode.State) history.NodeState {
		return history.NodeState{
			Owner: st.Owner, Expires: time.Duration(st.Expires.UnixNano()), Fence: st.Fence, Marked: st.Marked,
			Waits: st.Waits, Slot: st.Slot,
		}
	}
	s.mu.Lock()
	life, forgotAt := s.life, s.forgotAt
	s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := history.NodeStep{
		Node: s.id, Life: life, Began: forgotAt, At: w.history.Now(), Script: step.Script, Lock: step.Lock, Owner: step.Owner,
		Counter: step.Counter, Before: state(step.Before), After: state(step.After),
	}
	w.log.Add(n)
	w.trace("node %d %s %s by %.8s: %.13s %d to %.13s %d", n.Node, n.Script, n.Lock, n.Owner,
		n.Before.Owner, n.Before.Fence, n.After.Owner, n.After.Fence)
}

// publish says what becomes of a message to a subscriber.
func (s *server) publish(string, string) (time.Duration, bool) {
	w := s.world
	d := s.dice.upTo(w.Latency)
	if w.happens(s.dice, messageLate, 1) {
		d += s.dice.upTo(time.Second)
	}
	return d, w.happens(s.dice, messageLost, 1)
}

// gate returns when the client is not paused, and reports whether it lives.
func (c *client) gate() bool {
	for {
		c.mu.Lock()
		stopped, dead := c.stopped, c.dead
		c.mu.Unlock()
		if stopped == nil || dead {
			return !dead
		}
		<-stopped
	}
}

func (c *client) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// living returns the clients that have not died.
func (w *world) living() []*client {
	return slices.DeleteFunc(slices.Clone(w.clients), (*client).isDead)
}
