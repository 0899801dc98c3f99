package redlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// disputed is a key whose first node is not the first of all.
const disputed = "b"

// rival locks it for owner on the given nodes, past the client. It returns what releases it there.
func rival(t *testing.T, b *majority, owner string, on ...int) (release func()) {
	t.Helper()
	req := backend.Request{Key: disputed, Token: owner, TTL: time.Minute}
	for _, i := range on {
		if _, err := b.nodes[i].Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, i := range on {
			if err := b.nodes[i].Release(t.Context(), req); err != nil {
				t.Error(err)
			}
		}
	}
}

// attempted is one attempt on it. The lease, if there is one, is released, and what else there is cleaned up.
func attempted(t *testing.T, b *majority) error {
	req := backend.Request{Key: disputed, Token: backend.NewToken(), TTL: time.Minute}
	g, err := b.Acquire(t.Context(), req)
	if err == nil {
		req.Fence, req.Private = g.Fence, g.Private
		if err := b.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(100 * time.Millisecond)
	return err
}

// After a split vote, all clients ask the same node first, and the others when it has granted. So somebody wins the
// next vote. The order ends by itself.
func TestSplitVoteBringsOrder(t *testing.T) {
	const oneWay = time.Millisecond
	virtual.Test(t, func(t *testing.T) {
		type asked struct {
			node int
			at   time.Time
		}
		var mu sync.Mutex
		var all []asked
		first := agreed(disputed, 5)
		free := (first + 1) % 5 // answers before the others, so that its vote counts in a round that they decide
		b, _ := quorum(t, func(i int) simnode.Network {
			return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				if isAcquiring(cmds[0]) {
					mu.Lock()
					all = append(all, asked{i, time.Now()})
					mu.Unlock()
				}
				if i != free {
					time.Sleep(oneWay)
				}
				replies := execute()
				time.Sleep(oneWay)
				return replies, nil
			}
		}, 5)
		// votes makes an attempt, and returns the nodes that it asked, in order, and how long after the first each.
		votes := func(want error) (nodes []int, after []time.Duration) {
			t.Helper()
			mu.Lock()
			all = nil
			mu.Unlock()
			if err := attempted(t, b); !errors.Is(err, want) {
				t.Fatalf("attempt: %v, want %v", err, want)
			}
			mu.Lock()
			defer mu.Unlock()
			slices.SortFunc(all, func(a, b asked) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.node, b.node)) })
			for _, a := range all {
				nodes, after = append(nodes, a.node), append(after, a.at.Sub(all[0].at))
			}
			return nodes, after
		}
		atOnce := func(when string) {
			t.Helper()
			if nodes, after := votes(nil); !slices.Equal(nodes, []int{0, 1, 2, 3, 4}) || slices.Max(after) != 0 {
				t.Errorf("%s: asked %v after %v, want all at once", when, nodes, after)
			}
		}
		atOnce("no rival")

		releaseA := rival(t, b, "A", first, (first+2)%5)
		releaseB := rival(t, b, "B", (first+3)%5, (first+4)%5)
		_, _ = votes(locker.ErrHeld)
		if nodes, _ := votes(locker.ErrHeld); !slices.Equal(nodes, []int{first}) {
			t.Errorf("the first has refused: asked %v, want %d alone", nodes, first)
		}
		releaseA()
		releaseB()
		others := slices.Delete([]int{0, 1, 2, 3, 4}, first, first+1)
		nodes, after := votes(nil)
		if !slices.Equal(nodes, append([]int{first}, others...)) || after[1] != 2*oneWay || after[4] != 2*oneWay {
			t.Errorf("the first has granted: asked %v after %v, want %d, and the others when it has answered", nodes,
				after, first)
		}

		time.Sleep(time.Second)
		atOnce("a second later")
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A counter that is far ahead brings the others to it, although nothing is known of it but by the word of a node that
// has granted to somebody else: the next acquisition needs no second round.
func TestHintFromWhoRefuses(t *testing.T) {
	const ahead = 0 // and the first to answer, so that a majority has it
	for name, tt := range map[string]struct {
		rivals []int
		want   error
	}{
		"in an attempt that wins":  {[]int{ahead}, nil},
		"in an attempt that fails": {[]int{ahead, 1}, locker.ErrHeld},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var raises atomic.Int64
				b, nodes := quorum(t, func(i int) simnode.Network {
					return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
						if wire.Calls(cmds[0], "raise") {
							raises.Add(1)
						}
						if i != ahead {
							time.Sleep(time.Millisecond)
						}
						return execute(), nil
					}
				}, 3)
				nodes[ahead].Skew = time.Minute
				release := rival(t, b, "somebody else", tt.rivals...)
				nodes[ahead].Skew = 0 // set right; its counter stays
				if err := attempted(t, b); !errors.Is(err, tt.want) {
					t.Fatalf("with rivals: %v, want %v", err, tt.want)
				}
				release()
				raises.Store(0)
				if err := attempted(t, b); err != nil {
					t.Fatal(err)
				}
				if n := raises.Load(); n != 0 {
					t.Errorf("%d nodes had to raise their counters", n)
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
