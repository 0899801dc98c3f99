package node

import (
	"context"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// instant grants and releases at once.
type instant struct{}

func (instant) Direct() bool { return true }
func (instant) Close() error { return nil }

func (instant) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	replies := make([]drivers.Reply, len(cmds)) // probes of what the server knows are not answered
	replies[0] = int64(1795279217407079)
	if wire.Releases(cmds[0]) {
		replies[0] = int64(1)
	}
	return replies, nil
}

// BenchmarkUncontended is what a lock and its release take besides the driver.
func BenchmarkUncontended(b *testing.B) {
	c := locker.NewClient(New(instant{}, Options{Name: "n1", Prefix: "lock:"}))
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
