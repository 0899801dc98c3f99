package node

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// queues waits for the lock k, and wants n tokens.
func (p *client) queues(owner string, n int) <-chan backend.Grant {
	got := make(chan backend.Grant, 1)
	req := request(owner)
	go func() {
		wait, _ := clientwait.New(p.x.Context(), locker.Patience(time.Minute))
		g, err := p.node.Queue(p.x.Context(), req, asking{wait, n})
		if err != nil {
			p.x.Errorf("%s: %v", owner, err)
		}
		got <- g
	}()
	return got
}

// asking is a Wait that asks for a number of tokens.
type asking struct {
	backend.Wait
	fences int
}

func (a asking) Fences() int { return a.fences }

// releases releases the lock k.
func (p *client) releases(g backend.Grant) {
	p.x.Helper()
	req := request(g.Token)
	req.Fence, req.Private = g.Fence, g.Private
	if err := p.node.Release(p.x.Context(), req); err != nil {
		p.x.Errorf("Release: %v", err)
	}
}

// However a waiter comes to the lock, it is told how many tokens there are, and the next grant is past all of them.
func TestWaitersAreGrantedBlocks(t *testing.T) {
	for name, tt := range map[string]struct {
		enqueue, heartbeat, claim fault // of the second waiter; the heartbeat is the first after the release
		lost                      bool  // the message about its grant
	}{
		"in order":                     {},
		"the message is lost":          {lost: true},
		"the request is sent twice":    {enqueue: fault{twice: true}},
		"a heartbeat is not answered":  {lost: true, heartbeat: fault{mute: true, cut: true}},
		"the claim is sent twice":      {claim: fault{twice: true}},
		"the claim's answer is lost":   {claim: fault{mute: true, cut: true}},
		"the claim is lost on the way": {claim: fault{lost: true, cut: true}},
	} {
		t.Run(name, func(t *testing.T) {
			onTestbed(t, func(x *testbed) {
				// Past the clock, so that counters grow by what is drawn alone.
				z := script.Attempt{Keys: script.KeysOf("p:", "k"), Token: "z", Node: 1, Contended: true}
				x.node.Execute(z.Acquire(time.Second, 1, 0).Words)
				x.node.Execute(z.Raise(8000000000000000).Words)
				x.node.Execute(script.Release{Attempt: z}.Command().Words)
				a, b, c := x.client(), x.client(), x.client()
				one := a.queues("a", 128)
				time.Sleep(time.Second)
				first := <-one
				will := map[string]fault{"enqueue": tt.enqueue, "claim": tt.claim}
				b.fault = func(kind string) fault {
					f := will[kind]
					delete(will, kind)
					return f
				}
				two := b.queues("b", 128)
				time.Sleep(time.Second)
				three := c.queues("c", 5)
				time.Sleep(time.Second)
				if tt.lost {
					x.messages(lost)
				}
				b.mu.Lock()
				will["enqueue"] = tt.heartbeat
				b.mu.Unlock()
				a.releases(first)
				if first.Fences != 128 {
					x.Errorf("%d tokens of a lock that was free", first.Fences)
				}
				past := first.Fence + 128
				for range 2 {
					var g backend.Grant
					want, by := 128, b
					select { // a waiter that hears of its grant too late comes after the next one
					case g = <-two:
					case g = <-three:
						want, by = 5, c
					}
					if g.Fence < past || !tt.lost && g.Fence != past || g.Fences != want {
						x.Errorf("%d tokens from %d on, want %d from %d on", g.Fences, g.Fence, want, past)
					}
					past = g.Fence + uint64(want)
					by.releases(g)
				}
				if g := <-a.queues("d", 1); g.Fence != past || g.Fences > 1 {
					x.Errorf("%d tokens from %d on, want one, %d", g.Fences, g.Fence, past)
				} else {
					a.releases(g)
				}
				x.nothing()
			})
		})
	}
}

// More tokens than there may be are not granted.
func TestBlocksAreBounded(t *testing.T) {
	onTestbed(t, func(x *testbed) {
		c := x.client()
		g := <-c.queues("a", 1_000_000)
		if g.Fences != backend.MaxFences {
			x.Errorf("%d tokens", g.Fences)
		}
		c.releases(g)
		x.nothing()
	})
}

// splitSlot refuses commands that need several keys, as the servers of a slot that migrates do.
type splitSlot struct {
	drivers.Driver
	split  bool
	claims []string // how many keys each had
}

func (*splitSlot) Cluster() {}

func (d *splitSlot) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	for _, cmd := range cmds {
		if !wire.Calls(cmd, "claim") {
			continue
		}
		if d.claims = append(d.claims, cmd[2]); d.split && cmd[2] != "1" {
			return []drivers.Reply{drivers.ServerError("TRYAGAIN Multiple keys request during rehashing of slot")}, nil
		}
	}
	return d.Driver.Do(ctx, cmds...)
}

// While its slot moves, a lock is claimed with one token.
func TestLockIsClaimedWhileItsSlotMoves(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		nodes := simnode.NewNodes(1)
		node := func() (*Cluster, *splitSlot) {
			d := &splitSlot{Driver: simnode.Cluster(nodes, func(int) simnode.Network { return nil })}
			n := NewCluster(d, Options{Prefix: "p:", Timeout: timeout})
			t.Cleanup(func() { _ = n.Close() })
			return n, d
		}
		a, _ := node()
		b, d := node()
		held, err := a.Acquire(t.Context(), request("a"))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan backend.Grant)
		req := request("b")
		req.Fences = backend.MaxFences
		go func() {
			g, err := b.Queue(t.Context(), req, asking{waiting(t.Context()), max(1, req.Fences)})
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		time.Sleep(time.Second)
		d.split = true
		release := request("a")
		release.Fence, release.Private = held.Fence, held.Private
		if err := a.Release(t.Context(), release); err != nil {
			t.Error(err)
		}
		if g := <-got; g.Fence <= held.Fence || g.Fences != 0 || !slices.Equal(d.claims, []string{"2", "1"}) {
			t.Errorf("%d tokens, claims of %q keys", g.Fences, d.claims)
		}
		release = request("b")
		if err := b.Release(t.Context(), release); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}
