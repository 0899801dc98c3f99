package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// A context that ends at any moment: the sweep goes over every message from and to the waiter, before it leaves, when
// it is executed, when its answer is on its way, when that has come.
func TestSweepOverTheEndOfTheContext(t *testing.T) {
	for _, warm := range []bool{true, false} {
		t.Run(fmt.Sprint("subscribed before: ", warm), func(t *testing.T) {
			outcomes := map[string]int{}
			n := 1
			for ; ; n++ {
				if n > 200 {
					t.Fatal("the sweep does not end")
				}
				happened := 0
				onTestbed(t, func(x *testbed) { happened = len(endOfContext(x, ending{moment: n}, warm, outcomes)) })
				if happened < n || t.Failed() {
					break
				}
			}
			t.Logf("%d moments, outcomes %v", n-1, outcomes)
			if n < 20 || outcomes["held"] < 5 || outcomes["unknown"] < 2 || outcomes["locked"] == 0 {
				t.Errorf("%d moments, outcomes %v: the sweep has missed its target", n-1, outcomes)
			}
		})
	}
}

// A deadline that passes at each of those moments, and just before and after it.
func TestSweepOverTheDeadline(t *testing.T) {
	for _, warm := range []bool{true, false} {
		t.Run(fmt.Sprint("subscribed before: ", warm), func(t *testing.T) {
			outcomes := map[string]int{}
			var moments []time.Duration
			onTestbed(t, func(x *testbed) { moments = endOfContext(x, ending{}, warm, map[string]int{}) })
			for _, d := range slices.Compact(moments) {
				for _, d := range []time.Duration{d - 1, d, d + 1} {
					if d > 0 && !t.Failed() {
						onTestbed(t, func(x *testbed) { endOfContext(x, ending{after: d}, warm, outcomes) })
					}
				}
			}
			t.Logf("%d moments, outcomes %v", len(moments), outcomes)
			if len(moments) < 20 || outcomes["held"] < 5 || outcomes["unknown"] < 2 || outcomes["locked"] == 0 {
				t.Errorf("%d moments, outcomes %v: the sweep has missed its target", len(moments), outcomes)
			}
		})
	}
}

// ending is when a context ends: cancelled at the moment of that number, or by its deadline, that long after Lock was
// called. The zero value: not at all.
type ending struct {
	moment int
	after  time.Duration
}

// endOfContext lets the context of b end while a has the lock, then b, and c waits behind b. It returns when the
// moments were, counted from the call of Lock.
func endOfContext(x *testbed, e ending, warm bool, outcomes map[string]int) (moments []time.Duration) {
	ctx, cancel := context.WithCancelCause(x.Context())
	defer cancel(nil)
	want := context.Canceled
	var mu sync.Mutex
	var began, ended time.Time
	armed := false
	moment := func() {
		mu.Lock()
		hit := false
		if armed {
			moments = append(moments, time.Since(began))
			hit = len(moments) == e.moment
		}
		mu.Unlock()
		if hit {
			ended = time.Now()
			cancel(errOver)
			time.Sleep(time.Nanosecond) // what that sets going is ahead of what comes
		}
	}
	arm := func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		armed = on
	}
	a, c := x.client(), x.client()
	b := x.client(func(d drivers.Driver) drivers.Driver { return &watched{d, d.(drivers.Subscriber), moment} })
	b.moment = moment
	if warm {
		b.warm()
		c.warm()
		time.Sleep(time.Second)
	}
	lease := a.must()
	began = time.Now()
	if e.after > 0 {
		want, ended = context.DeadlineExceeded, began.Add(e.after)
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, ended, errOver)
		defer stop()
	}
	arm(true)
	result := make(chan error, 1)
	var mine locker.Lease
	var back time.Time
	go func() {
		l, err := b.Lock(ctx, "k", locker.TTL(5*time.Minute))
		mine, back = l, time.Now()
		result <- err
	}()
	x.settle()
	behind := c.lock(locker.TTL(5 * time.Minute))
	behind.waits(3 * time.Second) // some heartbeats
	x.unlock(lease)
	err := <-result
	arm(false)
	switch {
	case err == nil:
		outcomes["locked"]++
		x.sound(mine)
		behind.waits(time.Second)
		x.unlock(mine)
	case errors.Is(err, locker.ErrHeld):
		outcomes["held"]++
	default: // it ended before the first answer
		outcomes["unknown"]++
	}
	if err != nil {
		if !errors.Is(err, want) || !errors.Is(err, errOver) {
			x.Errorf("%+v: %v does not match the context's", e, err)
		}
		if late := back.Sub(ended); late > 1 {
			x.Errorf("%+v: Lock returned %v after the context's end", e, late)
		}
	}
	x.unlock(behind.gets(100 * time.Millisecond))
	x.nothing()
	return moments
}

// watched calls moment around each message that comes to a subscriber.
type watched struct {
	drivers.Driver
	subscriber drivers.Subscriber
	moment     func()
}

func (w *watched) Subscribe(ctx context.Context, l drivers.Listener) (drivers.Subscription, error) {
	message, subscribed := l.Message, l.Subscribed
	l.Message = func(channel, payload string) {
		w.moment()
		message(channel, payload)
		w.moment()
	}
	l.Subscribed = func(channel string) {
		w.moment()
		subscribed(channel)
		w.moment()
	}
	return w.subscriber.Subscribe(ctx, l)
}
