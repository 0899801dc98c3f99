package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// crowd is a group whose writer holds it, and many readers that wait and do not look.
type crowd struct {
	*testing.T
	s      *redistest.Server
	n      *Node
	writer backend.Request
}

func newCrowd(t *testing.T) crowd {
	s, n := real(t)
	w := backend.Request{
		Key: "k", Token: "w", TTL: time.Hour, Group: &backend.Group{Kind: backend.Exclusive},
	}
	g, err := n.Acquire(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	w.Fence, w.Private = g.Fence, g.Private
	return crowd{t, s, n, w}
}

func (x crowd) keys() script.Keys { return x.n.keys(x.writer.Key) }

func (x crowd) reader(o string) backend.Request {
	return backend.Request{Key: x.writer.Key, Token: o, TTL: time.Hour, Group: &backend.Group{Kind: backend.Shared}}
}

// comes lets so many readers wait.
func (x crowd) comes(readers int) {
	x.Helper()
	for i := range readers {
		r := x.reader(fmt.Sprint("r", i))
		a := x.n.attempt(&r)
		send(x.T, x.n, a.Enqueue(time.Hour, script.MaxPositionTTL, 0, ""))
	}
}

// served waits until nobody waits. That the queue ends by itself is no service.
func (x crowd) served() {
	x.Helper()
	for end := time.Now().Add(30 * time.Second); x.s.Cmd(x, "PERSIST", x.keys().Queue()) == int64(1) ||
		x.s.Cmd(x, "EXISTS", x.keys().Queue()) == int64(1); {
		if time.Now().After(end) {
			x.Fatalf("%v readers still wait", x.s.Cmd(x, "ZCARD", x.keys().Queue()))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A downgrade serves all readers that wait, also if they are more than one step looks at, or several at once.
func TestDowngradeServesAllThatWait(t *testing.T) {
	x := newCrowd(t)
	x.comes(64*mostSteps + 100)
	x.writer.Group = &backend.Group{Kind: backend.Shared}
	if err := x.n.Extend(t.Context(), x.writer); err != nil {
		t.Error(err)
	}
	x.served()
}

// A waiter that serves as many as one step looks at when it finds itself served lets the others be served, too.
func TestAWaiterThatIsServedServesAllThatWait(t *testing.T) {
	x := newCrowd(t)
	first := make(chan error, 1)
	go func() {
		_, err := x.n.Queue(t.Context(), x.reader("first"), waiting(t.Context()))
		first <- err
	}()
	for x.s.Cmd(t, "EXISTS", x.keys().Queue()) == int64(0) {
		time.Sleep(time.Millisecond)
	}
	x.comes(100)
	x.s.Cmd(t, "ZADD", x.keys().Lock, "XX", 1, x.writer.Token) // its time is over, which nobody is told
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	x.served()
}
