package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
)

// pausing is a store with a queue. The process stops when it is handed the lock for the first time.
type pausing struct {
	*store
	stop time.Duration
}

func (p *pausing) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	g, err := p.Backend.(locker.Queuer).Queue(ctx, req)
	time.Sleep(p.stop)
	p.stop = 0
	return g, err
}

// A call has waited for longer than its patience, and is then granted the lock too late. That is one fault, which began
// when the lock was granted, and the call waits on.
func TestPatienceBeginsWithTheFaultAndNotWithTheWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(&pausing{s, ttl})
		held := mustLock(t, c, "k")
		time.AfterFunc(2*locker.DefaultPatience, func() { mustUnlock(t, held) })
		l, err := c.Lock(t.Context(), "k", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, l)
		_ = c.Close()
	})
}
