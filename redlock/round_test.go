package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/simnode"
	"github.com/golocker/locker/internal/virtual"
)

// A round that has lost its patience with silent nodes, and then got a majority, waits for the raises, however long they take
// within its budget.
func TestPatienceIsForVotes(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const held, slow, silent = 2, 3, 4
		b, nodes := quorum(t, func(i int) simnode.Network {
			return func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				switch {
				case i == silent:
					<-ctx.Done()
					return nil, ctx.Err()
				case i == slow: // the third to grant
					time.Sleep(minPatience / 4)
				case len(cmds[0]) > 2 && cmds[0][2] == "2": // the number of keys: a raise
					time.Sleep(2 * minPatience)
				}
				return execute(), nil
			}
		}, 5)
		for i, n := range nodes {
			n.Skew = -time.Duration(i) * time.Second // their counters differ
		}
		if _, err := b.nodes[held].Acquire(t.Context(), locker.Request{Key: "k", Token: "somebody else", TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		req := acquired(t, b)
		if err := b.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}
