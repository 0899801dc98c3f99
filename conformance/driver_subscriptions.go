package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

func messagesArrive(t testing.TB, h DriverHarness) {
	addr := h.Addr(t)
	d, witness := openDriver(t, h, addr), openDriver(t, h, addr)
	a, b, other := newChannel(), newChannel()+binary, newChannel()
	sub, e := subscribe(t, d, a)
	var want []event
	send := func(channel, payload string, counts bool) {
		publish(t, witness, channel, payload)
		if counts {
			want = append(want, event{"message", channel, payload})
		}
	}
	for _, payload := range []string{"", binary, strings.Repeat("long ", 1<<16), "subscribe", a} {
		send(a, payload, true)
		send(b, payload, false)
		send(other, payload, false)
	}
	if err := sub.Subscribe(b, other); err != nil {
		t.Fatalf("Subscribe to two more: expected no error, seen %v", err)
	}
	e.await(t, event{"subscribed", other, ""})
	e.await(t, event{"subscribed", b, ""})
	for i := range 300 {
		send([]string{a, b, other}[i%3], fmt.Sprint(i), true)
	}
	e.await(t, want[len(want)-1])
	if seen := e.messages(); !reflect.DeepEqual(want, seen) {
		t.Errorf("messages: expected %s, seen %s", show(want), show(seen))
	}
}

func confirmedMeansDelivered(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	sub, e := subscribe(t, d)
	for range 50 {
		channel := newChannel()
		if err := sub.Subscribe(channel); err != nil {
			t.Fatalf("Subscribe: expected no error, seen %v", err)
		}
		e.await(t, event{"subscribed", channel, ""})
		publish(t, witness, channel, "now")
		e.await(t, event{"message", channel, "now"})
	}
	channel := newChannel()
	r.swallowAfter(channel)
	_ = sub.Subscribe(channel)
	for end := time.Now().Add(hangLimit); !r.seen() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if e.within(quiet, event{"subscribed", channel, ""}) {
		t.Errorf("Subscribed: expected it when the server has confirmed the channel, seen it although the server has " +
			"not")
	}
}

func unsubscribeStops(t testing.TB, h DriverHarness) {
	addr := h.Addr(t)
	d, witness := openDriver(t, h, addr), openDriver(t, h, addr)
	gone, stays := newChannel(), newChannel()
	sub, e := subscribe(t, d, gone, stays)
	if err := sub.Unsubscribe(gone); err != nil {
		t.Fatalf("Unsubscribe: expected no error, seen %v", err)
	}
	waitUntilUnsubscribed(t, witness, gone)
	publish(t, witness, gone, "late")
	publish(t, witness, stays, "last")
	e.await(t, event{"message", stays, "last"})
	if slices.Contains(e.messages(), event{"message", gone, "late"}) {
		t.Errorf("expected no message on a channel that was unsubscribed from, seen one")
	}
	// The channel is subscribed again without a pause. The last request counts.
	for range 20 {
		if err := errors.Join(sub.Unsubscribe(stays), sub.Subscribe(stays)); err != nil {
			t.Fatalf("Unsubscribe and Subscribe: expected no error, seen %v", err)
		}
	}
	mark := newChannel()
	_ = sub.Subscribe(mark)
	e.await(t, event{"subscribed", mark, ""})
	publish(t, witness, stays, "back")
	e.await(t, event{"message", stays, "back"})
}

func lostWhenTheConnectionDies(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	subscriber(t, d)
	for _, what := range []string{"one connection breaks", "the server is down for a moment"} {
		channel, marker := newChannel(), newChannel()
		sub, e := subscribe(t, d, channel)
		if what == "one connection breaks" { // the server would accept a new connection
			r.cutAfter(marker)
			_ = sub.Subscribe(marker)
			e.awaitLost(t)
		} else {
			r.down()
			e.awaitLost(t)
			r.up(t)
		}
		waitUntilUnsubscribed(t, witness, channel) // the server may notice a little later
		waitUntilUnsubscribed(t, witness, marker)
		for end := time.Now().Add(quiet); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			for _, channel := range []string{channel, marker} {
				if n := publish(t, witness, channel, "after"); n != 0 {
					t.Fatalf("%s: expected nobody to subscribe again, seen %d", what, n)
				}
			}
		}
		if seen := e.messages(); len(seen) > 0 {
			t.Errorf("%s: expected no more messages, seen %s", what, show(seen))
		}
		if err := sub.Subscribe(newChannel()); err == nil {
			t.Errorf("%s: expected an error of Subscribe on a subscription that has ended, seen none", what)
		}
		subscribe(t, d, channel) // a new subscription works
	}
}

func subscribeKeepsToTheContext(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	mute := openDriver(t, h, muteServer(t))
	e := newEar(t)
	for _, c := range []struct {
		what string
		d    drivers.Driver
		end  func(cancel func())
	}{
		{"a deadline", mute, nil},
		{"cancellation", mute, func(cancel func()) { time.AfterFunc(stall, cancel) }},
		{"a context that has ended", d, func(cancel func()) { cancel() }},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), stall)
		if c.end != nil {
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			c.end(cancel)
		}
		if _, err := open(ctx, t, c.d, stall+slack, e.listener()); err == nil {
			t.Errorf("%s: expected an error of Subscribe, seen none", c.what)
		}
		cancel()
	}
	if seen := e.recorded(); len(seen) > 0 {
		t.Errorf("expected no call of the listener after a failed Subscribe, seen %s", show(seen))
	}
	// The context must not limit anything after the opening.
	ctx, cancel := context.WithCancel(t.Context())
	sub, err := open(ctx, t, d, hangLimit, e.listener())
	if err != nil {
		t.Fatalf("Subscribe: expected no error, seen %v", err)
	}
	defer func() { _ = sub.Close() }()
	cancel()
	time.Sleep(quiet)
	channel := newChannel()
	if err := sub.Subscribe(channel); err != nil {
		t.Fatalf("Subscribe after the end of the context that bounded the opening: expected no error, seen %v", err)
	}
	e.await(t, event{"subscribed", channel, ""})
}

func closeEndsTheSubscription(t testing.TB, h DriverHarness) {
	d, witness, r := throughRelay(t, h)
	subscriber(t, d)
	check := func(what string, sub drivers.Subscription, e *callLog, end func() error) {
		t.Helper()
		closeSoon(t, what, end)
		before := e.recorded()
		time.Sleep(quiet / 4)
		if late := e.recorded()[len(before):]; len(late) > 0 {
			t.Errorf("%s: expected no call of the listener after it returned, seen %s", what, show(late))
		} else if !slices.Contains(before, event{"lost", "", ""}) {
			t.Errorf("%s: expected Lost before it returned, seen none", what)
		} else if !errors.Is(e.err, drivers.ErrClosed) {
			t.Errorf("%s: expected Lost with an error that matches ErrClosed, seen %v", what, e.err)
		}
		closeSoon(t, what+" again", end)
		if sub.Subscribe(newChannel()) == nil || sub.Unsubscribe(newChannel()) == nil {
			t.Errorf("%s: expected errors of Subscribe and Unsubscribe afterwards, seen none", what)
		}
	}
	sub, e := subscribe(t, d)
	_, _ = sub.Subscribe(), sub.Unsubscribe() // nothing to do
	check("Close of one without channels", sub, e, sub.Close)

	channel := newChannel()
	for range 5 {
		sub, e = subscribe(t, d, channel)
		ctx, cancel := context.WithCancel(t.Context())
		var publisher sync.WaitGroup
		publisher.Go(func() {
			for ctx.Err() == nil {
				_, _ = witness.Do(context.WithoutCancel(ctx), drivers.Command{"PUBLISH", channel, "more"})
			}
		})
		e.await(t, event{"message", channel, "more"})
		check("Close amid messages", sub, e, sub.Close)
		cancel()
		publisher.Wait()
	}
	waitUntilUnsubscribed(t, witness, channel)

	sub, e = subscribe(t, d, channel)
	marker := newChannel()
	r.swallowAfter(marker)
	_ = sub.Subscribe(marker)
	check("Close of one whose server has fallen silent", sub, e, sub.Close)

	sub, e = subscribe(t, d, channel)
	check("the driver's Close", sub, e, d.Close)
	waitUntilUnsubscribed(t, witness, channel)
	mute := openDriver(t, h, muteServer(t))
	time.AfterFunc(stall, func() { _ = mute.Close() })
	for what, d := range map[string]drivers.Driver{"after": d, "under way at": mute} {
		if _, err := open(context.WithoutCancel(t.Context()), t, d, stall+slack, newEar(t).listener()); !errors.Is(err,
			drivers.ErrClosed) {
			t.Errorf("Subscribe %s the driver's Close: expected an error that matches ErrClosed, seen %v", what, err)
		}
	}
}

func subscriptionDoesNotBlockCommands(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	for range 4 {
		sub, e := subscribe(t, d, newChannel())
		for i := range 8 {
			if replies, err := attempt(t, d, hangLimit, drivers.Command{"SET", key, fmt.Sprint(i)},
				drivers.Command{"GET", key}); err != nil {
				t.Fatalf("commands beside subscriptions: expected no error, seen %v", err)
			} else {
				expect(t, "commands beside subscriptions", []drivers.Reply{"OK", fmt.Sprint(i)}, replies)
			}
			channel := newChannel()
			if err := sub.Subscribe(channel); err != nil {
				t.Fatalf("Subscribe beside commands: expected no error, seen %v", err)
			}
			e.await(t, event{"subscribed", channel, ""})
		}
	}
}

func subscriptionRefused(t testing.TB, h DriverHarness) {
	if h.Refused == nil {
		t.Skip("the harness has no Refused")
	}
	e := newEar(t)
	_, err := open(t.Context(), t, closeAtEnd(t, h.Refused(t)), hangLimit, e.listener())
	var refusal drivers.ServerError
	if !errors.As(err, &refusal) || strings.ToUpper(refusal.Code()) != refusal.Code() {
		t.Errorf("Subscribe on a connection that the server refuses: expected a ServerError, seen %#v", err)
	}
	if seen := e.recorded(); len(seen) > 0 {
		t.Errorf("expected no call of the listener after a failed Subscribe, seen %s", show(seen))
	}
}

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
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	sub, err := open(ctx, t, d, hangLimit+slack, e.listener())
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
