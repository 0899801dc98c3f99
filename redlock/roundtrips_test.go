package redlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/redlock"
)

const quantum = 65536 * time.Microsecond

// quanta returns the number of the quantum that a clock is in.
func quanta(now time.Time) int64 { return now.UnixMicro() / quantum.Microseconds() }

// An acquisition that nobody disputes, of a key that was used before, costs one command per node, and so does its
// release, although the nodes' clocks differ and the key's counters did. Here all that happens within one quantum of
// those clocks; if they pass into another while the nodes answer, some may have to be raised.
func TestOneCommandPerNodeInVirtualTime(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 9} {
		t.Run(fmt.Sprint(n, " nodes"), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				kinds := map[string]int{}
				reverse := false // the order in which nodes answer
				count := func(what string) int {
					mu.Lock()
					defer mu.Unlock()
					return kinds[what]
				}
				ds, nodes := make([]drivers.Driver, n), make([]*simnode.Node, n)
				for i := range ds {
					node := simnode.New()
					node.Skew = time.Duration(i) * quantum // apart, at first: their counters differ
					nodes[i] = node
					ds[i] = node.Driver(func(_ context.Context, cmds []drivers.Command,
						execute func() []drivers.Reply) ([]drivers.Reply, error) {
						mu.Lock()
						for _, cmd := range cmds {
							kinds["all"]++
							for kind, is := range map[string]func([]string) bool{"acquire": isAcquire, "raise": isRaise,
								"release": isRelease} {
								if is(cmd) {
									kinds[kind]++
								}
							}
						}
						rank := i + 1
						if reverse {
							rank = n - i
						}
						mu.Unlock()
						time.Sleep(time.Duration(rank) * 100 * time.Microsecond)
						return execute(), nil
					})
				}
				l := redlock.New(ds, redlock.Logger(slog.New(slog.DiscardHandler)))
				for cycle := range 20 {
					before := quanta(time.Now())
					for quanta(time.Now()) == before {
						time.Sleep(time.Millisecond)
					}
					mu.Lock()
					clear(kinds)
					mu.Unlock()
					lease, err := l.TryLock(t.Context(), "k")
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(5 * time.Millisecond) // until the last node has answered
					if cycle > 0 && (count("acquire") != n || count("all") != n) {
						t.Errorf("cycle %d: %v to acquire, want %d commands", cycle, kinds, n)
					}
					if err := lease.Unlock(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Millisecond) // whatever else there may be; the counters are still ahead of most clocks
					if cycle > 0 && (count("release") != n || count("all") != 2*n) {
						t.Errorf("cycle %d: %v in all, want %d commands", cycle, kinds, 2*n)
					}
					if cycle > 0 {
						continue
					}
					if n > 1 && count("raise") == 0 {
						t.Error("nothing was raised: the counters did not differ")
					}
					// Those that granted late, and with more than the token, come first from now on.
					for i, node := range nodes {
						node.Skew = time.Duration(i) * time.Millisecond
					}
					mu.Lock()
					reverse = true
					mu.Unlock()
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
