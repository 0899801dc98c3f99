package redlock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

// Healing costs an extension nothing. The extension does not wait for nodes that heal, and every node is sent one
// command, once: those that have the lock an extension, and those that lack it an acquisition.
func TestHealingCostsNoRoundTrip(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const roundTrip = 10 * time.Millisecond
		w := newWard(t)
		w.falls(2, unreachable)
		req := acquired(t, w.backend)
		time.Sleep(10 * time.Second) // nobody waits for them any more
		var sent [5]atomic.Int64
		w.mu.Lock()
		for i := range w.nodes {
			w.ill[i] = func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
				sent[i].Add(int64(len(cmds)))
				if i < 2 { // which heal
					time.Sleep(10 * roundTrip)
				}
				time.Sleep(roundTrip)
				return execute(), nil
			}
		}
		w.mu.Unlock()
		start := time.Now()
		if err := w.Extend(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != roundTrip {
			t.Errorf("the extension took %v, want %v", took, roundTrip)
		}
		time.Sleep(time.Second)
		if got := w.has(); got != allOf(5) {
			t.Errorf("nodes %b have the lock", got)
		}
		for i := range sent {
			if n := sent[i].Load(); n != 1 {
				t.Errorf("node %d was sent %d commands, want 1", i, n)
			}
		}
		if err := w.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		w.ends(t)
	})
}
