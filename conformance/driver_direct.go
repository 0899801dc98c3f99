package conformance

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// deadlineOnly is a context that ends by time and tells nobody.
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

// deadlineWithoutDone has nothing to check of a driver that is no drivers.Direct, or never says yes.
func deadlineWithoutDone(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	direct, ok := d.(drivers.Direct)
	if !ok {
		return
	}
	var together sync.WaitGroup // a client may go about it in another way from then on
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

// leaving is the context of a caller that waits in a drivers.Interruptible: it ends by leave, and by time, which it does not tell.
type leaving struct {
	deadlineOnly
	done chan struct{}
}

func newLeaving(t testing.TB, limit time.Duration) *leaving {
	return &leaving{deadlineOnly{context.WithoutCancel(t.Context()), time.Now().Add(limit)}, make(chan struct{})}
}

func (l *leaving) leave()                { close(l.done) }
func (l *leaving) Done() <-chan struct{} { return l.done }

func (l *leaving) Err() error {
	select {
	case <-l.done:
		return context.Canceled
	default:
		return l.deadlineOnly.Err()
	}
}

// OnLeave is what such contexts are known by.
func (l *leaving) OnLeave(interrupt func()) (stop func() bool) {
	told, cancel := context.WithCancel(context.Background())
	forget := context.AfterFunc(told, interrupt)
	over := make(chan struct{})
	go func() {
		defer cancel()
		select {
		case <-l.done:
		case <-over:
		}
	}()
	return func() bool {
		defer close(over)
		return forget()
	}
}

// letsGo has nothing to check of a driver that is no drivers.Interruptible, or never says yes.
func letsGo(t testing.TB, h DriverHarness) {
	addr := h.Addr(t)
	d, witness := openDriver(t, h, addr), openDriver(t, h, addr)
	interruptible, ok := d.(drivers.Interruptible)
	if !ok {
		return
	}
	waits := func(key string) drivers.Command { return drivers.Command{"BLPOP", key, "0"} }
	underWay := func() bool {
		text, said := must(t, witness, drivers.Command{"CLIENT", "LIST"})[0].(string)
		return !said || strings.Contains(text, "cmd=blpop") // a server may refuse to say
	}
	for range 3 {
		other, silent := newKey(t, witness), newKey(t, witness)
		must(t, d, drivers.Command{"PING"})
		answer := make(chan error, 1)
		go func() {
			_, err := d.Do(context.WithoutCancel(t.Context()), waits(other))
			answer <- err
		}()
		for end := time.Now().Add(patience); !underWay() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		for range 2 { // a connection may have to be made
			must(t, d, drivers.Command{"PING"})
		}
		if interruptible.Interruptible() {
			called := newLeaving(t, patience)
			start := time.Now()
			time.AfterFunc(stall, called.leave)
			if _, err := call(called, t, d, slack, waits(silent)); err == nil {
				t.Error("BLPOP, its caller called away: expected an error, seen none")
			}
			if took := time.Since(start); took < stall/2 {
				t.Errorf("BLPOP: expected no return until its caller was called away, seen one after %v", took)
			}
		}
		must(t, witness, drivers.Command{"RPUSH", silent, "x"}) // where calls share a connection, they wait for one another
		must(t, witness, drivers.Command{"RPUSH", other, "x"})
		if err := <-answer; err != nil {
			t.Errorf("BLPOP beside one whose caller was called away: expected no error, seen %v", err)
		}

		must(t, d, drivers.Command{"PING"})
		if !interruptible.Interruptible() {
			return
		}
		if replies, err := call(newLeaving(t, patience), t, d, patience, drivers.Command{"ECHO", "hello"}); err != nil || replies[0] != "hello" {
			t.Errorf("ECHO: expected hello and no error, seen %s, %v", show(replies), err)
		}
		late := newKey(t, witness)
		if _, err := call(newLeaving(t, stall), t, d, stall+slack, waits(late)); err == nil {
			t.Error("BLPOP: expected an error by the deadline, seen none")
		}
		must(t, witness, drivers.Command{"RPUSH", late, "x"})
	}
}
