package conformance

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// quiet is how long the suite waits for messages that must not arrive.
const quiet = 300 * time.Millisecond

func subscriber(t testing.TB, d drivers.Driver) drivers.Subscriber {
	t.Helper()
	s, ok := d.(drivers.Subscriber)
	if !ok {
		t.Skip("the driver does not implement drivers.Subscriber: waiters poll")
	}
	return s
}

func newChannel() string { return "conformance:" + rand.Text() }

// event is one call of a listener: "subscribed", "message" or "lost".
type event struct{ what, channel, payload string }

// callLog is a listener that records its calls. In every check its calls must not overlap, and the last call must be
// Lost.
type callLog struct {
	t       testing.TB
	calls   atomic.Int32
	mu      sync.Mutex
	events  []event
	err     error         // of Lost
	changed chan struct{} // closed and replaced with each event
}

func newEar(t testing.TB) *callLog { return &callLog{t: t, changed: make(chan struct{})} }

func (e *callLog) record(v event, err error) {
	if e.calls.Add(1) > 1 {
		e.t.Errorf("%v: expected one call of the listener at a time, seen two", v)
	}
	defer e.calls.Add(-1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.events); n > 0 && e.events[n-1].what == "lost" {
		e.t.Errorf("expected no call of the listener after Lost, seen %q", v)
	}
	if v.what == "lost" && err == nil {
		e.t.Errorf("Lost: expected an error, seen none")
	}
	e.events, e.err = append(e.events, v), err
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *callLog) listener() drivers.Listener {
	return drivers.Listener{
		Subscribed: func(channel string) { e.record(event{"subscribed", channel, ""}, nil) },
		Message:    func(channel, payload string) { e.record(event{"message", channel, payload}, nil) },
		Lost:       func(err error) { e.record(event{"lost", "", ""}, err) },
	}
}

func (e *callLog) recorded() []event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events)
}

func (e *callLog) messages() []event {
	return slices.DeleteFunc(e.recorded(), func(v event) bool { return v.what != "message" })
}

// within reports whether v has been recorded, or is recorded before d has passed.
func (e *callLog) within(d time.Duration, v event) bool {
	timeout := time.After(d)
	for {
		e.mu.Lock()
		found, changed := slices.Contains(e.events, v), e.changed
		e.mu.Unlock()
		if found {
			return true
		}
		select {
		case <-changed:
		case <-timeout:
			return false
		}
	}
}

func (e *callLog) await(t testing.TB, v event) {
	t.Helper()
	if !e.within(recovery, v) {
		t.Fatalf("expected the listener to hear %q within %v, seen %s", v, recovery, show(e.recorded()))
	}
}

func (e *callLog) awaitLost(t testing.TB) {
	t.Helper()
	if !e.within(recovery, event{"lost", "", ""}) {
		t.Fatalf("expected Lost within %v, seen %s", recovery, show(e.recorded()))
	}
}

// opened is the result of Subscribe.
type opened struct {
	sub drivers.Subscription
	err error
}

// open calls Subscribe, and fails the check if it has not returned after limit. Subscribe then continues in its
// goroutine.
func open(ctx context.Context, t testing.TB, d drivers.Driver, limit time.Duration,
	l drivers.Listener) (drivers.Subscription, error) {
	t.Helper()
	s := subscriber(t, d)
	done := make(chan opened, 1)
	go func() {
		sub, err := s.Subscribe(ctx, l)
		done <- opened{sub, err}
	}()
	select {
	case o := <-done:
		if (o.sub == nil) != (o.err != nil) {
			t.Fatalf("Subscribe: expected a subscription or an error, seen %v and %v", o.sub, o.err)
		}
		return o.sub, o.err
	case <-time.After(limit):
		t.Fatalf("Subscribe: expected it to return, seen nothing for %v", limit)
		return nil, nil
	}
}

// subscribe opens a subscription and waits until its channels are confirmed. It is closed at the end of the test.
func subscribe(t testing.TB, d drivers.Driver, channels ...string) (drivers.Subscription, *callLog) {
	t.Helper()
	e := newEar(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sub, err := open(ctx, t, d, patience+slack, e.listener())
	if err != nil {
		t.Fatalf("Subscribe: expected no error, seen %v", err)
	}
	t.Cleanup(func() {
		closeSoon(t, "Close of the subscription", sub.Close)
	})
	if err := sub.Subscribe(channels...); err != nil {
		t.Fatalf("Subscribe %q: expected no error, seen %v", channels, err)
	}
	for _, channel := range channels {
		e.await(t, event{"subscribed", channel, ""})
	}
	return sub, e
}

func closeSoon(t testing.TB, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: expected no error, seen %v", what, err)
		}
	case <-time.After(slack):
		t.Errorf("%s: expected it to return, seen nothing for %v", what, slack)
	}
}

func publish(t testing.TB, d drivers.Driver, channel, payload string) (receivers int64) {
	t.Helper()
	receivers, _ = must(t, d, drivers.Command{"PUBLISH", channel, payload})[0].(int64)
	return receivers
}

// waitUntilUnsubscribed waits until the channel has no subscribers.
func waitUntilUnsubscribed(t testing.TB, d drivers.Driver, channel string) {
	t.Helper()
	var receivers int64
	for end := time.Now().Add(recovery); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if receivers = publish(t, d, channel, "anybody?"); receivers == 0 {
			return
		}
	}
	t.Errorf("expected nobody to be subscribed any more within %v, seen %d", recovery, receivers)
}
