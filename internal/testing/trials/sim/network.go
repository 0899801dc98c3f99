package sim

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// link is the network between a client and a node.
type link struct {
	client *client
	server *server
	dice   *dice

	// connected says that the last exchange was answered. Then a driver that is drawn to be direct keeps to deadlines.
	connected atomic.Bool

	mu          sync.Mutex
	noWay       bool // requests do not arrive
	noWayBack   bool // replies do not
	unreachable bool // it is noticed when a connection is made
}

// maxLate is how much later than usual a message may be executed.
const maxLate = 500 * time.Millisecond

// dialRefused is what drivers say of a server that is down; after it, nodes are not dialled for a while.
var dialRefused = drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

type answer struct {
	replies []drivers.Reply
	err     error
}

// deliver is a simnode.Network. What it returns is what the client sees; a message goes its way also when the client
// has stopped to wait for it.
func (l *link) deliver(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply,
	error) {
	w, d := l.client.world, l.dice
	l.client.note(cmds)
	l.mu.Lock()
	unreachable := l.unreachable
	l.mu.Unlock()
	if unreachable || l.happens(unsent) || l.server.isDown() && d.chance(.9) {
		l.connected.Store(false)
		return nil, dialRefused
	}
	come := make(chan answer, 1)
	w.underWay.Go(func() {
		if a, ok := l.travel(cmds, execute); ok {
			come <- a
		}
	})
	select {
	case a := <-come:
		l.connected.Store(a.err == nil)
		return a.replies, a.err
	case <-ctx.Done():
		l.connected.Store(false)
		return nil, ctx.Err()
	}
}

// happens decides whether a fault happens to a message. None does on the way to a node that is spared.
func (l *link) happens(k fault) bool {
	return !l.server.isSpared() && l.client.world.happens(l.dice, k, 1)
}

// travel is the way of a batch to the node and back. ok says that the client hears of its end; otherwise there is
// silence.
func (l *link) travel(cmds []drivers.Command, execute func() []drivers.Reply) (a answer, ok bool) {
	w, d, s := l.client.world, l.dice, l.server
	// What has become of it, it becomes of the connection, too: broken, or silent.
	broken := func() (answer, bool) { return answer{err: io.EOF}, d.chance(.5) }
	back := time.Duration(0) // for how much longer than usual the reply takes
	alive := l.client.gate()
	time.Sleep(w.Latency/20 + d.upTo(w.Latency))
	l.mu.Lock()
	noWay := l.noWay
	l.mu.Unlock()
	switch {
	case !alive, noWay:
		return answer{}, false
	case l.happens(requestLost):
		return broken()
	case l.happens(slow):
		if back = d.upTo(300 * time.Millisecond); d.chance(.5) {
			time.Sleep(back)
			back = 0
		}
	case l.happens(late):
		w.underWay.Go(func() {
			time.Sleep(d.upTo(maxLate))
			l.execute(execute)
		})
		return broken()
	case l.happens(refused):
		codes := []drivers.ServerError{"LOADING not yet", "READONLY not here", "OOM no room", "BUSY with a script"}
		return answer{replies: drivers.Refused(codes[d.intn(len(codes))], len(cmds))}, true
	case strings.HasPrefix(cmds[0][0], "EVALSHA") && l.happens(scriptsFlushed):
		return answer{replies: drivers.Refused("NOSCRIPT No matching script.", len(cmds))}, true
	}
	w.countJoined(cmds)
	replies, executed := l.execute(execute)
	if !executed { // the server is down
		return broken()
	}
	if l.happens(twice) {
		l.again(cmds, execute)
	}
	boot := s.booted()
	time.Sleep(w.Latency/20 + d.upTo(w.Latency) + back)
	l.mu.Lock()
	noWay = l.noWayBack
	l.mu.Unlock()
	switch {
	case noWay, !l.client.gate():
		return answer{}, false
	case l.happens(replyLost), s.booted() != boot:
		return broken()
	}
	return answer{replies: replies}, true
}

// countJoined counts commands that travel in the script of joined commands: alone, and with others.
func (w *world) countJoined(cmds []drivers.Command) {
	for _, cmd := range cmds {
		switch steps := wire.Steps(cmd); {
		case len(steps) > 1:
			w.count("joined with others", len(steps))
		case len(steps) == 1 && steps[0].Joined:
			w.count("joined alone", 1)
		}
	}
}

// again executes a batch a second time, later. Drivers send once, so this is more than has to be borne: it may leave a
// lock behind, which is known to nobody if the first execution was refused, or answered and released. The TTL cleans up
// then; for one key that would take too long.
func (l *link) again(cmds []drivers.Command, execute func() []drivers.Reply) {
	for _, cmd := range cmds {
		if slices.ContainsFunc(wire.Steps(cmd), func(s wire.Step) bool { return strings.Contains(s.Lock, longKey) }) {
			return
		}
	}
	w := l.client.world
	w.underWay.Go(func() {
		time.Sleep(l.dice.upTo(maxLate))
		l.execute(execute)
	})
}

// execute has the node execute a batch, when it runs. A process that crashes takes with it what it had received.
func (l *link) execute(execute func() []drivers.Reply) (replies []drivers.Reply, executed bool) {
	s := l.server
	s.mu.Lock()
	stopped, down, boot := s.stopped, s.down, s.boot
	s.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
	if down || s.isDown() || s.booted() != boot {
		return nil, false
	}
	return execute(), true
}

func (s *server) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

func (s *server) booted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boot
}
