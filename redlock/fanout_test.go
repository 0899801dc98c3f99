package redlock

import (
	"testing"
	"time"

	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/testing/virtual"
)

// wavering is an operation whose time limit grows at the moment at which it is over, and then does not.
type wavering struct {
	asker
	end   time.Time
	calls int
}

func (w *wavering) until() time.Time {
	w.calls++
	if w.calls == 2 {
		return w.end.Add(time.Second)
	}
	return w.end
}

func (w *wavering) overdue() { w.end = time.Time{} }

// What until returns may depend on what other operations learn at the same time, as the habits of nodes do.
func TestCollectEndsAlthoughTheLimitWavers(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		f := fanout{b: &majority{closing: make(chan struct{})}, ready: make(chan *node.Call)}
		stop := time.AfterFunc(time.Hour, func() { close(f.b.closing) })
		defer stop.Stop()
		begun := time.Now()
		f.collect(t.Context(), &wavering{end: begun.Add(time.Second)})
		if took := time.Since(begun); took != time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
