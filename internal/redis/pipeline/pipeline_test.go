package pipeline

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

func TestBusyNodeGathersCommands(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		const calls = 300
		for range calls {
			callers.Go(func() {
				if err := do(t.Context(), p, get); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(wake)
		callers.Wait()
		sizes := d.sizes()
		slices.Sort(sizes)
		// One for each sender, at once, and the rest in as few as may be.
		if want := []int{1, 1, 1, 1, 40, 128, 128}; !slices.Equal(sizes, want) {
			t.Errorf("%d calls of a busy node went out in batches of %d, want %d", calls, sizes, want)
		}
	})
}

// A caller that leaves may have its command carried out, also one that waits for a sender, or take that back.
func TestCommandGoesOnWithoutItsCaller(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		told := map[int]bool{}
		var mu sync.Mutex
		calls := make([]Call, maxSenders+2)
		for i := range calls {
			calls[i].Command = get
			p.Submit(&calls[i], func() { t.Errorf("call %d is told of after it was left", i) })
			if p.Follow(&calls[i], func() {
				mu.Lock()
				defer mu.Unlock()
				told[i] = true
			}) {
				t.Errorf("call %d is done", i)
			}
		}
		synctest.Wait()
		for i := range calls {
			if got, want := p.UnderWay(&calls[i]), i < maxSenders; got != want {
				t.Errorf("call %d is under way: %t, want %t", i, got, want)
			}
		}
		for i := range maxSenders + 1 {
			if got, want := p.Withdraw(&calls[i]), i == maxSenders; got != want {
				t.Errorf("call %d was taken back: %t, want %t", i, got, want)
			}
		}
		if p.Withdraw(&calls[maxSenders]) {
			t.Error("it was taken back twice")
		}
		close(wake)
		synctest.Wait()
		mu.Lock()
		if len(told) != maxSenders+1 || told[maxSenders] || !told[maxSenders+1] {
			t.Errorf("told of %v", told)
		}
		mu.Unlock()
		last := &calls[maxSenders+1]
		if !p.Follow(last, func() { t.Error("told of what was known") }) || p.Withdraw(last) || p.UnderWay(last) {
			t.Error("it is not done")
		}
	})
}

// What hangs is given up after the timeout, so that senders become free for a node that has recovered.
func TestExchangeEndsWithTheTimeout(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(hangs)
		var callers sync.WaitGroup
		for range maxSenders {
			callers.Go(func() { _ = do(t.Context(), p, get) })
		}
		synctest.Wait()
		d.will(ok)
		start := time.Now()
		time.Sleep(time.Second)
		if err := do(t.Context(), p, get); err != nil {
			t.Errorf("behind commands that hang: %v", err)
		}
		if took := time.Since(start); took != timeout {
			t.Errorf("the senders became free after %v, want %v", took, timeout)
		}
		callers.Wait()
	})
}

// A caller that was stalled until its time was over has its command sent nevertheless.
func TestNoTimeIsLeft(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(slowly(time.Second, ok))
		answered := make(chan struct{})
		_, err := p.Do(t.Context(), get, -time.Second, func(drivers.Reply, error) { close(answered) })
		if err == nil || err.Error() != "no answer within 0s" || errors.Is(err, drivers.ErrNotSent) {
			t.Errorf("%v, want no answer within 0s", err)
		}
		<-answered
	})
}

// A sender that comes to run when the driver has been closed does not use it any more.
func TestClosedDriverIsLeftAlone(t *testing.T) {
	d := &fake{answer: ok}
	p := New(d, timeout)
	ready := make(chan struct{})
	p.cancel()
	c := &Call{Command: get}
	p.Submit(c, func() { close(ready) })
	<-ready
	if !errors.Is(c.Err, ErrClosed) || !errors.Is(c.Err, drivers.ErrNotSent) || d.trips() > 0 {
		t.Errorf("%v, and %d batches were sent", c.Err, d.trips())
	}
	p.Close()
}

// Close of a node wakes the callers that wait, whether their contexts can end or not, and also one that has passed the
// first check. Their commands go on.
func TestAbandonedCallers(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(slowly(time.Second, ok))
		start, told := time.Now(), make(chan error, 2)
		var callers sync.WaitGroup
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			callers.Go(func() {
				_, err := p.Do(ctx, get, timeout, func(_ drivers.Reply, err error) { told <- err })
				if !errors.Is(err, ErrClosed) || errors.Is(err, drivers.ErrNotSent) {
					t.Errorf("%v, want ErrClosed for a command that was sent", err)
				}
			})
		}
		synctest.Wait()
		p.Abandon()
		callers.Wait()
		if err := do(t.Context(), p, get); !errors.Is(err, ErrClosed) || !errors.Is(err, drivers.ErrNotSent) {
			t.Errorf("after Abandon: %v", err)
		}
		late := &Call{Command: get, answered: make(chan wake, 2), until: start.Add(timeout)}
		p.Submit(late, nil)
		if why := <-late.answered; why != abandoned {
			t.Errorf("a caller that came at the same moment woke because of %d", why)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("callers waited for %v", took)
		}
		for range 2 {
			if err := <-told; err != nil {
				t.Errorf("a command did not go on: %v", err)
			}
		}
	})
}

// A caller who has left without its command being sent is told of nothing, also if the pipeline is being closed.
func TestWhoHasLeftIsNotTold(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := New(&fake{answer: ok}, timeout)
		p.sending = maxSenders // none is free
		before := make(chan struct{})
		c := &Call{Command: get}
		p.Submit(&Call{Command: get}, func() { before <- struct{}{} })
		p.Submit(c, func() { t.Error("it was told") })
		go p.Close()
		synctest.Wait() // it tells the first one
		if !p.Withdraw(c) {
			t.Error("a command that was not sent was not taken back")
		}
		<-before
		synctest.Wait()
	})
}

func TestHungNodeCostsNoGoroutinePerCall(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		before := goroutines()
		for range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			err := do(ctx, p, get)
			cancel()
			if err == nil {
				t.Fatal("answered by a node that does not answer")
			}
		}
		if more := goroutines() - before; more > maxSenders {
			t.Errorf("%d goroutines are left by 1000 calls", more)
		}
		p.mu.Lock()
		if got := len(p.pending); got > 0 {
			t.Errorf("%d commands still wait", got)
		}
		p.mu.Unlock()
		close(wake)
		synctest.Wait()
		if got := d.sent("GET"); got > maxSenders {
			t.Errorf("%d commands were sent; those that waited must vanish with their callers", got)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		refused := make(chan error, 1) // the senders call back, too, in the end
		for range maxPending + maxSenders*MaxBatch + 1 {
			c := &Call{Command: release}
			p.Submit(c, func() {
				if c.Err != nil {
					refused <- c.Err
				}
			})
			if len(refused) > 0 {
				break
			}
		}
		var err error
		select {
		case err = <-refused:
		default:
		}
		if !errors.Is(err, ErrFull) || !errors.Is(err, drivers.ErrNotSent) {
			t.Errorf("got %v, want %v", err, ErrFull)
		}
		close(wake)
		synctest.Wait()
	})
}

func TestIdleNodeHasNoGoroutine(t *testing.T) {
	bubble(t, false, func(t *testing.T, _ *fake, p *Pipeline) {
		before := goroutines()
		if err := do(t.Context(), p, get); err != nil {
			t.Fatal(err)
		}
		time.Sleep(senderIdle)
		synctest.Wait()
		if after := goroutines(); after != before {
			t.Errorf("%d goroutines after a call, %d before", after, before)
		}
	})
}

// Callers that wait inside the driver count as senders: a server that hangs holds four of them, and what gathers behind
// is sent together, by none of them.
func TestCallersInTheDriverAreSenders(t *testing.T) {
	bubble(t, true, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				if err := do(context.Background(), p, get); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if got := d.trips(); got != maxSenders {
			t.Errorf("%d batches in flight, want %d", got, maxSenders)
		}
		d.will(slowly(time.Second, ok))
		start := time.Now()
		close(wake)
		callers.Wait()
		if got, took := d.trips(), time.Since(start); got != maxSenders+1 || took != time.Second {
			t.Errorf("%d batches in all and %v for the rest, want %d and 1s", got, took, maxSenders+1)
		}
	})
}

// Each caller waits for as long as it wants to, and no longer, although they share a timer.
func TestCallersWaitAsLongAsTheyWant(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		start := time.Now()
		wait := func(ctx context.Context, limit, want time.Duration) {
			callers.Go(func() {
				begun := time.Since(start)
				_, err := p.Do(ctx, get, limit, nil)
				if got := time.Since(start) - begun; err == nil || got != want {
					t.Errorf("begun after %v, with a limit of %v, one waits for %v, want %v: %v", begun, limit, got, want, err)
				}
				if want == limit && !strings.Contains(err.Error(), "no answer within "+limit.String()) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for _, ms := range []time.Duration{3000, 1000, 2000, 1000, 4000, 1500, 1500} {
			wait(context.Background(), ms*time.Millisecond, ms*time.Millisecond)
			time.Sleep(100 * time.Millisecond)
		}
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		wait(short, time.Second, 200*time.Millisecond)
		callers.Wait()
		cancel()
		close(wake)
	})
}

// An answer ends the wait, and the timer is not set again when nobody waits.
func TestNobodyWaitsAfterTheAnswer(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(slowly(time.Millisecond, ok))
		var callers sync.WaitGroup
		for i := range 300 {
			callers.Go(func() {
				for range 50 {
					if _, err := p.Do(context.Background(), get, time.Duration(1+i%3)*time.Second, nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		callers.Wait()
		p.mu.Lock()
		if p.callers.first != nil {
			t.Error("somebody waits")
		}
		p.mu.Unlock()
		time.Sleep(timeout)
		p.mu.Lock()
		if !p.callers.rings.IsZero() {
			t.Error("the timer is set")
		}
		p.mu.Unlock()
	})
}

// A caller that has left is not woken, whether its command was taken back or goes on without it.
func TestWhoHasLeftDoesNotWait(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		late := make(chan struct{}, maxSenders)
		for i := range maxSenders + 3 { // the last three are taken back
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := p.Do(ctx, get, time.Second, func(drivers.Reply, error) { late <- struct{}{} })
			cancel()
			if err == nil {
				t.Errorf("call %d was answered", i)
			}
		}
		p.mu.Lock()
		if p.callers.first != nil {
			t.Error("somebody waits")
		}
		p.mu.Unlock()
		time.Sleep(2 * time.Second)
		close(wake)
		for range maxSenders {
			<-late
		}
	})
}
