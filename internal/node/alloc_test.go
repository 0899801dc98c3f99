//go:build !race

package node

import (
	"context"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// instant grants and releases without allocating.
type instant struct {
	granted, released []drivers.Reply
}

func (instant) Direct() bool { return true }

// letting is an instant that lets callers go, as drivers do: by a function of their own, used again.
type letting struct {
	instant
	interrupt func()
}

func (letting) Interruptible() bool { return true }

func (d letting) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if ctx.Done() != nil {
		defer drivers.OnLeave(ctx, d.interrupt)()
	}
	return d.instant.Do(ctx, cmds...)
}

func (instant) Close() error { return nil }

func (d instant) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if cmds[0][1] == handoverScript.sha {
		return d.released, nil
	}
	return d.granted, nil
}

// The race detector allocates, too, so this is only for builds without it.
//
// What a lock and its release allocate besides the driver: the lease, the owner value, what the queue knows of the attempt
// with its two commands, and the names and arguments of each. If this fails with more, see what has begun to escape
// (go test -run '^$' -bench Uncontended -memprofile). Less is a reason to lower the number.
func TestAllocationsOfAnUncontendedLock(t *testing.T) {
	answers := instant{[]drivers.Reply{int64(1795279217407079)}, []drivers.Reply{int64(1)}}
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, tt := range []struct {
		name   string
		driver drivers.Driver
		ctx    context.Context
		want   float64
	}{
		{"plain", answers, context.Background(), 5},
		{"cancellable", answers, cancellable, 6}, // and a context without the caller's end
		// Twice context.AfterFunc, and no other goroutine.
		{"cancellable, in the driver", letting{answers, func() {}}, cancellable, 10},
	} {
		c := locker.NewClient(FIFO{New(tt.driver, Options{Name: "n1", Prefix: "lock:"})})
		got := testing.AllocsPerRun(1000, func() {
			lease, err := c.Lock(tt.ctx, "orders:42")
			if err == nil {
				err = lease.Unlock(tt.ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		if got > tt.want {
			t.Errorf("%s: %v allocations, want %v", tt.name, got, tt.want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkUncontended is what a lock and its release take besides the driver.
func BenchmarkUncontended(b *testing.B) {
	c := locker.NewClient(FIFO{New(instant{
		[]drivers.Reply{int64(1795279217407079)}, []drivers.Reply{int64(1)},
	}, Options{Name: "n1", Prefix: "lock:"})})
	b.ReportAllocs()
	for b.Loop() {
		lease, err := c.Lock(context.Background(), "orders:42")
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	_ = c.Close()
}
