package node

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
)

// movingSlots refuses commands on the slot of a key for a while, as the servers of a slot that migrates do.
type movingSlots struct {
	drivers.Driver
	code  string
	until atomic.Int64 // Unix time in ns
	tried atomic.Int64
}

// Cluster implements drivers.Cluster.
func (*movingSlots) Cluster() {}

func (d *movingSlots) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if time.Now().UnixNano() >= d.until.Load() {
		return d.Driver.Do(ctx, cmds...)
	}
	d.tried.Add(1)
	replies := make([]drivers.Reply, len(cmds))
	for i := range replies {
		replies[i] = drivers.ServerError(d.code + " for a while")
	}
	return replies, nil
}

// What a server refuses because a slot moves is sent again, within half of the time that the call has.
func TestRefusedWhileTheSlotMoves(t *testing.T) {
	const timeout, window = 4 * time.Second, time.Second
	for _, code := range []string{"TRYAGAIN", "ASK", "MOVED", "CLUSTERDOWN", "LOADING"} {
		t.Run(code, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				d := &movingSlots{
					Driver: simnode.Cluster(simnode.NewNodes(1), func(int) simnode.Network { return nil }), code: code,
				}
				c := locker.NewClient(QueuedCluster{NewCluster(d, Options{Prefix: "p:", Timeout: timeout})})
				refuse := func(window time.Duration) { d.until.Store(time.Now().Add(window).UnixNano()) }
				again := code != "LOADING"

				refuse(window)
				lease, err := c.TryLock(t.Context(), "a")
				if (err == nil) != again {
					t.Errorf("TryLock: %v", err)
				}
				if err == nil {
					refuse(window / 2) // Unlock waits for a second
					if err := lease.Unlock(t.Context()); err != nil {
						t.Errorf("Unlock: %v", err)
					}
				}
				if n := d.tried.Load(); n > 60 {
					t.Errorf("%d requests in %v", n, 2*window)
				}
				begun := time.Now()
				refuse(timeout)
				if _, err := c.TryLock(t.Context(), "b"); err == nil {
					t.Error("TryLock: no error")
				}
				if took := time.Since(begun); took > timeout/2 {
					t.Errorf("TryLock failed after %v", took)
				}
				refuse(timeout)
				lease, err = c.Lock(t.Context(), "c", locker.Patience(time.Minute))
				if (err == nil) != again {
					t.Errorf("Lock: %v", err)
				}
				if err == nil {
					_ = lease.Unlock(t.Context())
				}
				time.Sleep(time.Minute)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
