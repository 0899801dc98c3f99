package conformance

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// deadlineOnly is a context with a deadline and without a Done channel.
type deadlineOnly struct {
	context.Context
	end time.Time
}

func (d deadlineOnly) Deadline() (time.Time, bool) { return d.end, true }
func (d deadlineOnly) Done() <-chan struct{}       { return nil }

func (d deadlineOnly) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// deadlineWithoutDone skips a driver that does not implement drivers.Direct, or that never promises to keep such
// deadlines.
func deadlineWithoutDone(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	direct, ok := d.(drivers.Direct)
	if !ok {
		return
	}
	var together sync.WaitGroup // a client may behave differently with concurrent calls
	for range 16 {
		together.Go(func() { _, _ = d.Do(context.WithoutCancel(t.Context()), drivers.Command{"PING"}) })
	}
	together.Wait()
	for _, n := range []int{1, 2} {
		eventually(t, d, drivers.Command{"PING"})
		if !direct.Direct() {
			return
		}
		ctx := func(limit time.Duration) context.Context {
			return deadlineOnly{context.WithoutCancel(t.Context()), time.Now().Add(limit)}
		}
		cmds := []drivers.Command{{"INCR", newKey(t, witness)}, {"PING"}}[:n]
		if replies, err := call(ctx(patience), t, d, patience+slack, cmds...); err != nil || replies[0] != int64(1) {
			t.Errorf("%s, answered: expected 1 and no error, seen %s, %v", name(cmds), show(replies), err)
		}
		r.swallowAfter(cmds[0][1])
		if _, err := call(ctx(stall), t, d, stall+slack, cmds...); err == nil {
			t.Errorf("%s on a connection that fell silent: expected an error, seen none", name(cmds))
		}
	}
}
