//go:build !race

package redlock

import (
	"context"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// instant grants with one counter and releases, without allocating.
type instant struct{ granted, released []drivers.Reply }

func (instant) Direct() bool { return true }
func (instant) Close() error { return nil }

func (d instant) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	switch {
	case isAcquiring(cmds[0]):
		return d.granted, nil
	case len(cmds) > 1: // probes of what the server knows
		return append(d.released[:1:1], make([]drivers.Reply, len(cmds)-1)...), nil
	}
	return d.released, nil
}

// This bounds what a lock and its release on five nodes allocate, without the drivers. The race detector allocates,
// too, so this is only for builds without it. If the test fails, look for what has begun to escape.
func TestAllocationsOfAnUncontendedLock(t *testing.T) {
	ds := make([]drivers.Driver, 5)
	for i := range ds {
		ds[i] = instant{[]drivers.Reply{int64(1795279217407079)}, []drivers.Reply{int64(1)}}
	}
	b, err := newBackend(ds, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := locker.NewClient(b)
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	// About 190 today. A generous ceiling: it catches leaks, and growth with the square of the nodes.
	const want = 400
	for name, ctx := range map[string]context.Context{"plain": context.Background(), "cancellable": cancellable} {
		got := testing.AllocsPerRun(1000, func() {
			lease, err := c.Lock(ctx, "orders:42")
			if err == nil {
				err = lease.Unlock(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		if got > want {
			t.Errorf("%s: %v allocations, want %v", name, got, want)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
