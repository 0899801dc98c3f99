package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/lockertrace"
)

// counters are nodes whose counters for the slot of the key k a test sets and reads.
type counters struct {
	*majority
	nodes []*simnode.Node

	mu    sync.Mutex
	down  nodeSet
	calls map[string]int // commands that reached a node, by script
}

func newCounters(t *testing.T, n int) *counters {
	c := &counters{calls: map[string]int{}}
	c.majority, c.nodes = quorum(t, func(i int) simnode.Network {
		return func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
			c.mu.Lock()
			down := c.down.has(i)
			for _, cmd := range cmds {
				for _, s := range wire.Steps(cmd) {
					c.calls[s.Script]++
				}
			}
			c.mu.Unlock()
			time.Sleep(time.Duration(i+1) * 100 * time.Microsecond) // the first ones answer first
			if down {
				return unreachable(ctx, cmds, execute)
			}
			return execute(), nil
		}
	}, n)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *counters) setDown(nodes nodeSet) {
	c.mu.Lock()
	c.down = nodes
	c.mu.Unlock()
	time.Sleep(10 * time.Second) // until nodes that were down are asked again
}

// called returns how many commands of a script have come since it was called last.
func (c *counters) called(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.calls[name]
	c.calls[name] = 0
	return n
}

func (c *counters) set(i int, counter uint64) {
	c.nodes[i].Put(script.KeysOf("", "k").Fence(), fmt.Sprintf("%016d", counter))
}

func (c *counters) get(i int) uint64 {
	key := script.KeysOf("", "k").Fence()
	text, _ := c.nodes[i].Execute(drivers.Command{"EVAL", "return redis.call('GET', KEYS[1])", "1", key}).(string)
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// acquire asks for n tokens, and returns the request of the lock with the first of them.
func (c *counters) acquire(t *testing.T, n int) (req backend.Request, first, last uint64) {
	t.Helper()
	req = backend.Request{Key: "k", Token: backend.NewToken(), TTL: time.Minute, Fences: n}
	g, err := c.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if g.Fences != n {
		t.Errorf("%d tokens are granted, want %d", g.Fences, n)
	}
	req.Fence, req.Private = g.Fence, g.Private
	return req, g.Fence, g.Fence + uint64(n) - 1
}

func (c *counters) release(t *testing.T, req backend.Request) {
	t.Helper()
	if err := c.Release(t.Context(), req); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Millisecond)
}

const ahead = 8_000_000_000_000_000 // past the clock, so that counters grow by what is drawn, and by nothing else

// The counters of a majority are at the last token when the lock is granted, whether the nodes agree or have to raise
// theirs. With those that agree, that costs no further command.
func TestBlockIsCoveredByAMajority(t *testing.T) {
	for _, n := range []int{1, 2, 128} {
		for name, tt := range map[string]struct {
			counters [5]uint64
			raises   int
		}{
			"they agree":            {[5]uint64{5, 5, 5, 5, 5}, 0},
			"three agree":           {[5]uint64{5, 5, 5, 0, 0}, 0},
			"one is ahead":          {[5]uint64{5, 0, 0, 0, 0}, 1},
			"ahead by a block":      {[5]uint64{129, 1, 1, 1, 1}, 1},
			"ahead by less than it": {[5]uint64{60, 1, 30, 90, 127}, 1},
		} {
			t.Run(fmt.Sprint(name, ", ", n), func(t *testing.T) {
				virtual.Test(t, func(t *testing.T) {
					c := newCounters(t, 5)
					for i, counter := range tt.counters {
						c.set(i, ahead+counter)
					}
					req, first, last := c.acquire(t, n)
					var covering nodeSet
					for i := range c.nodes {
						if c.get(i) >= last {
							covering |= only(i)
						}
					}
					if covering.len() < 3 {
						t.Errorf("tokens %d to %d: nodes %b are at the last one", first-ahead, last-ahead, covering)
					}
					time.Sleep(time.Millisecond)
					if got := c.called("raise"); got > 0 != (tt.raises > 0) {
						t.Errorf("%d nodes were asked to raise", got)
					}
					if got := c.called("acquire"); got != 5 {
						t.Errorf("%d nodes were asked to acquire", got)
					}
					if err := c.Verify(t.Context(), req); err != nil {
						t.Error(err)
					}
					if err := c.Extend(t.Context(), req); err != nil {
						t.Error(err)
					}
					c.release(t, req)
				})
			})
		}
	}
}

// A later grant is past the whole block, although only one of its nodes was in the majority before. A node that was
// not may be anywhere in the block.
func TestNextGrantIsPastTheBlock(t *testing.T) {
	for _, behind := range []uint64{0, 1, 64, 127, 128, 500} {
		virtual.Test(t, func(t *testing.T) {
			c := newCounters(t, 5)
			for i := range c.nodes {
				c.set(i, ahead)
			}
			c.set(0, ahead+behind)
			c.setDown(only(3) | only(4))
			req, first, last := c.acquire(t, 128)
			c.release(t, req)
			for _, i := range []int{3, 4} {
				c.set(i, first-1+behind/2)
			}
			for _, i := range []int{0, 1, 2} { // the one that both have
				down := allOf(3) &^ only(i)
				c.setDown(down)
				c.hints.converged("k") // as another client, which has no hint
				next, first, end := c.acquire(t, 128)
				if first <= last {
					t.Errorf("tokens %d to %d after %d, by way of node %d", first-ahead, end-ahead, last-ahead, i)
				}
				last = end
				c.release(t, next)
			}
		})
	}
}

// In the next attempt of the client, a node that was behind agrees with one that is at the end of the block.
func TestHintIsPastTheBlock(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := newCounters(t, 3)
		for i := range c.nodes {
			c.set(i, uint64(time.Now().Add(time.Minute).UnixMicro()+int64(1000*(2-i))))
		}
		c.setDown(only(2))
		for i := range 3 {
			if i == 1 {
				c.setDown(only(0))
			}
			req, _, _ := c.acquire(t, 128)
			time.Sleep(time.Millisecond)
			if raised := c.called("raise"); raised > 0 != (i == 0) {
				t.Errorf("attempt %d: %d nodes had to raise their counters", i, raised)
			}
			c.release(t, req)
		}
	})
}

// A node that has forgotten its counter is past the block when it has healed, whatever its clock says.
func TestNodeThatHealsIsPastTheBlock(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := newCounters(t, 3)
		req, _, last := c.acquire(t, 128)
		time.Sleep(time.Millisecond)
		c.nodes[0].Flush()
		c.nodes[0].Skew = -time.Minute
		for range 2 {
			if err := c.Extend(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if got := c.get(0); got != last+1 {
			t.Errorf("the node is at %d, and the last token is %d", got, last)
		}
		c.release(t, req)
	})
}

// Callers of a Client hand the lock over to each other, also if they came when the first one waited already.
func TestLockIsHandedOverWithinTheProcess(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		nodes := make([]*simnode.Node, 5)
		var mu sync.Mutex
		acquisitions := 0
		client := func() *locker.Client {
			ds := make([]drivers.Driver, len(nodes))
			for i, n := range nodes {
				ds[i] = n.Driver(func(_ context.Context, cmds []drivers.Command,
					execute func() []drivers.Reply) ([]drivers.Reply, error) {
					mu.Lock()
					if slices.ContainsFunc(cmds, isAcquiring) {
						acquisitions++
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
					return execute(), nil
				})
			}
			c := New(ds)
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
			return c
		}
		for i := range nodes {
			nodes[i] = simnode.New()
		}
		mine, other := client(), client()
		held, err := other.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		const callers = 10
		var tokens []uint64
		local := 0
		var done sync.WaitGroup
		for range callers {
			done.Go(func() {
				ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
					Woken: func(w lockertrace.Wake) {
						mu.Lock()
						defer mu.Unlock()
						if w.Reason == lockertrace.WakeLocal {
							local++
						}
					},
				})
				l, err := mine.Lock(ctx, "k")
				if err != nil {
					t.Error(err)
					return
				}
				tokens = append(tokens, l.Fence())
				time.Sleep(time.Millisecond)
				if err := locker.Verify(ctx, l); err != nil {
					t.Error(err)
				}
				if err := l.Unlock(ctx); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(100 * time.Millisecond)
		}
		mu.Lock()
		acquisitions = 0
		mu.Unlock()
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		done.Wait()
		if local != callers-1 || acquisitions != 5 {
			t.Errorf("%d of %d callers were handed the lock, and nodes had %d acquisitions", local, callers, acquisitions)
		}
		if !slices.IsSorted(tokens) || tokens[callers-1] != tokens[0]+callers-1 {
			t.Errorf("tokens %d", tokens)
		}
	})
}
