package node

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
)

// testbed is a simulated server with clients of it, in virtual time. A command takes a millisecond there and one back.
type testbed struct {
	*testing.T
	node *simnode.Node
	// replicas have to confirm the locks of the clients that are made from now on.
	replicas pipeline.Replicas

	mu      sync.Mutex
	deliver func(channel, id string) (late time.Duration, lost bool) // what becomes of messages; nil: they come at once
}

const oneWay = time.Millisecond

func onTestbed(t *testing.T, f func(x *testbed)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		x := &testbed{T: t, node: simnode.New()}
		t.Cleanup(func() { time.Sleep(time.Minute) }) // after the clients' end: what is on its way arrives
		x.node.Deliver = func(channel, id string) (time.Duration, bool) {
			x.mu.Lock()
			deliver := x.deliver
			x.mu.Unlock()
			if deliver == nil {
				return 0, false
			}
			return deliver(channel, id)
		}
		f(x)
	})
}

// messages sets what becomes of them.
func (x *testbed) messages(deliver func(channel, id string) (time.Duration, bool)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deliver = deliver
}

func lost(string, string) (time.Duration, bool) { return 0, true }

// client makes a client, closed in the end. change may put something around its driver.
func (x *testbed) client(change ...func(drivers.Driver) drivers.Driver) *client {
	p := &client{x: x, moment: func() {}}
	d := x.node.Driver(p.network)
	for _, c := range change {
		d = c(d)
	}
	p.node = New(d, Options{Name: "n", Prefix: "p:", Replicas: x.replicas})
	p.Client = locker.NewClient(p.node)
	x.Cleanup(func() {
		if err := p.Close(); err != nil {
			x.Errorf("Close: %v", err)
		}
	})
	return p
}

// settle lets what is under way arrive: an opening of a subscription and two more commands.
func (x *testbed) settle() {
	time.Sleep(10 * oneWay)
	synctest.Wait()
}

// sound checks that the lock is the lease's for as long as the lease says.
func (x *testbed) sound(l locker.Lease) {
	x.Helper()
	reply := x.node.Execute(attempt("p:"+l.Key(), "spy").Enqueue(time.Second, 0, 0, "").Usual.Alone().Words)
	r, _ := reply.([]drivers.Reply)
	if len(r) != 6 || r[0] != int64(0) {
		x.Fatalf("the lock is not held: %v", reply)
	}
	if end := time.Now().Add(time.Duration(r[1].(int64)) * time.Millisecond); l.Until().After(end) {
		x.Errorf("the lease says that it lasts until %v after the key has expired", l.Until().Sub(end))
	}
	if err := l.Err(); err != nil {
		x.Errorf("a fresh lease has ended: %v", err)
	}
}

func (x *testbed) unlock(l locker.Lease) {
	x.Helper()
	if err := l.Unlock(x.Context()); err != nil {
		x.Errorf("Unlock: %v", err)
	}
}

// nothing checks that nothing but counters and tombstones is left, after what is in the background has had some time.
func (x *testbed) nothing() {
	x.Helper()
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	if left := x.left(); len(left) > 0 {
		x.Errorf("%q are left behind", left)
	}
}

func (x *testbed) left() []string { return slices.Sorted(slices.Values(x.node.Left())) }
