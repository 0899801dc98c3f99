package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// kindProperties are those of a backend that states backend.Capabilities.Kinds.
var kindProperties = []property[Harness]{
	{
		"KindsExclude",
		"A group has one exclusive lock, or any number of shared ones and at most one upgradeable; what each client of the " +
			"store is granted has a greater token than all before it.",
		"A writer is beside a reader, or two readers that become writers wait for each other.",
		kindsExclude,
	},
	{
		"KindsHandOn",
		"A lock of a group that is released goes to those that wait, in order, to readers in a row at the same time, and " +
			"not to one behind a writer that has to wait. Newcomers wait, too, but a reader passes those that wait for an " +
			"upgradeable lock.",
		"Readers of many processes are served one by one, a writer never comes among readers, or readers wait for as long " +
			"as a lock is upgradeable.",
		kindsHandOn,
	},
	{
		"UpgradePassesTheQueue",
		"An upgrade is granted before all that wait, once there is no other lock beside the one it is of, and leaves that " +
			"as it is. One of a lock that is not held, or not any more, is refused with ErrNotHeld.",
		"The writer that waits in front and the reader that becomes a writer wait for each other, or an upgrade that fails " +
			"takes the lock that its caller had.",
		upgradePassesTheQueue,
	},
	{
		"DowngradeHandsOn",
		"An Extend with the kind Shared makes an exclusive lock a shared one and hands on what that frees; one with " +
			"another kind changes none.",
		"Readers wait for a writer that reads, or a renewal that comes late makes a writer of a reader beside others.",
		downgradeHandsOn,
	},
	{
		"KindsAreWanted",
		"Extend of a lock of a group calls Request.Wanted if somebody waits whom it keeps out, and not if others wait.",
		"Readers of a process share a lock for as long as nobody waits for it: a writer would never come, or each reader " +
			"would ask for a lock of its own.",
		kindsAreWanted,
	},
}

// kinders makes n Backends for a fresh store, and skips the property unless they have groups of locks.
func kinders(t testing.TB, h Harness, n int) []backend.Backend {
	t.Helper()
	return stating(t, h, n, "Kinds", func(can backend.Capabilities) bool { return can.Kinds })
}

// kindOf is a request for a lock of a group.
func kindOf(kind backend.Kind) backend.Request {
	req := request("{k}#rw", longTTL)
	req.Group = &backend.Group{Kind: kind}
	return req
}

// upgradeOf is a request for the upgrade of a lock.
func upgradeOf(o *holding) backend.Request {
	req := kindOf(backend.Exclusive)
	req.Group.From = o.req.Token
	return req
}

// takeKind acquires a lock of a group, which is free.
func takeKind(t testing.TB, b backend.Backend, req backend.Request) *holding {
	t.Helper()
	sent := time.Now()
	g, err := b.Acquire(t.Context(), req)
	if err != nil {
		t.Fatalf("Acquire of a lock of kind %d, which is free: expected a grant, seen %v", req.Group.Kind, err)
	}
	return held(b, req, sent, g)
}

// wantKindHeld fails unless a lock of that kind is refused to newcomers.
func wantKindHeld(t testing.TB, when string, b backend.Backend, kind backend.Kind) {
	t.Helper()
	if _, err := b.Acquire(t.Context(), kindOf(kind)); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("Acquire of a lock of kind %d, %s: expected ErrHeld, seen %v", kind, when, err)
	}
}

func wantReleased(t testing.TB, owners ...*holding) {
	t.Helper()
	for _, o := range owners {
		if err := o.release(t.Context()); err != nil {
			t.Errorf("Release of a lock of a group: expected nil, seen %v", err)
		}
	}
}

// waitsOn fails if the call has ended.
func (q *queued) waitsOn(t testing.TB, what string) {
	t.Helper()
	select {
	case <-q.done:
		t.Errorf("%s: expected it to wait, seen %v", what, q.err)
	default:
	}
}

// soon returns the lock that the call is granted, within a moment.
func (q *queued) soon(t testing.TB, what string) *holding {
	t.Helper()
	start := time.Now()
	o := q.granted(t, what, hangLimit)
	if late := q.at.Sub(start); late > slack {
		t.Errorf("expected %s soon, seen after %v", what, late)
	}
	return o
}

func kindsExclude(t testing.TB, h Harness) {
	bs := kinders(t, h, 2)
	var newest uint64
	newer := func(o *holding) *holding {
		t.Helper()
		if o.req.Fence <= newest && backend.Of(bs[0]).Tokens {
			t.Errorf("a lock of kind %d: expected a token greater than %d, seen %d", o.req.Group.Kind, newest, o.req.Fence)
		}
		newest = o.req.Fence
		return o
	}
	reads := []*holding{
		newer(takeKind(t, bs[0], kindOf(backend.Shared))), newer(takeKind(t, bs[1], kindOf(backend.Upgradeable))),
		newer(takeKind(t, bs[1], kindOf(backend.Shared))),
	}
	for _, b := range bs {
		wantKindHeld(t, "beside readers", b, backend.Exclusive)
		wantKindHeld(t, "beside one that is upgradeable", b, backend.Upgradeable)
	}
	wantReleased(t, reads...)
	written := newer(takeKind(t, bs[0], kindOf(backend.Exclusive)))
	for _, b := range bs {
		for _, kind := range []backend.Kind{backend.Shared, backend.Upgradeable, backend.Exclusive} {
			wantKindHeld(t, "beside a writer", b, kind)
		}
	}
	wantReleased(t, written)
	wantReleased(t, newer(takeKind(t, bs[1], kindOf(backend.Shared))))
}

func kindsHandOn(t testing.TB, h Harness) {
	bs := kinders(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	written := takeKind(t, bs[0], kindOf(backend.Exclusive))
	var calls []*queued
	for i, kind := range []backend.Kind{
		backend.Shared, backend.Upgradeable, backend.Upgradeable, backend.Shared, backend.Exclusive, backend.Shared,
	} {
		q := queueFor(ctx, bs[i%len(bs)], kindOf(kind), 0)
		q.waits(t)
		calls = append(calls, q)
	}
	wantReleased(t, written)
	first := calls[0].soon(t, "a reader in front to be granted")
	up := calls[1].soon(t, "an upgradeable lock behind it to be granted")
	second := calls[3].soon(t, "a reader that passes one who waits for an upgradeable lock to be granted")
	time.Sleep(stall) // nothing tells that a caller was granted nothing
	calls[2].waitsOn(t, "Queue of a second upgradeable lock")
	calls[4].waitsOn(t, "Queue of a writer beside readers")
	calls[5].waitsOn(t, "Queue of a reader behind a writer")
	wantKindHeld(t, "while a writer waits", bs[0], backend.Shared)
	wantReleased(t, first, up, second)
	wantReleased(t, calls[2].soon(t, "an upgradeable lock to be granted"))
	wantReleased(t, calls[4].soon(t, "a writer to be granted"))
	wantReleased(t, calls[5].soon(t, "a reader behind a writer to be granted"))
	up = takeKind(t, bs[0], kindOf(backend.Upgradeable))
	next := queueFor(ctx, bs[1], kindOf(backend.Upgradeable), 0)
	next.waits(t)
	wantReleased(t, takeKind(t, bs[2], kindOf(backend.Shared)))
	wantReleased(t, up)
	wantReleased(t, next.soon(t, "an upgradeable lock to be granted"))
}

func upgradePassesTheQueue(t testing.TB, h Harness) {
	bs := kinders(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	reads, up := takeKind(t, bs[0], kindOf(backend.Shared)), takeKind(t, bs[1], kindOf(backend.Upgradeable))
	writer := queueFor(ctx, bs[2], kindOf(backend.Exclusive), 0)
	writer.waits(t)
	upgrade := queueFor(ctx, bs[1], upgradeOf(up), 0)
	upgrade.waits(t)
	time.Sleep(stall)
	upgrade.waitsOn(t, "Queue of an upgrade beside a reader")
	wantReleased(t, reads)
	o := upgrade.soon(t, "an upgrade to be granted before a writer that waits")
	writer.waitsOn(t, "Queue of a writer beside one that was upgraded")
	wantReleased(t, o) // as one that is undone
	if err := up.extend(ctx, longTTL); err != nil {
		t.Errorf("Extend of a lock after its upgrade was undone: expected nil, seen %v", err)
	}
	o = takeKind(t, bs[1], upgradeOf(up))
	wantReleased(t, up)
	wantKindHeld(t, "beside one that was upgraded", bs[0], backend.Shared)
	wantReleased(t, o)
	wantReleased(t, writer.soon(t, "a writer behind one that was upgraded to be granted"))
	if _, err := bs[1].Acquire(ctx, upgradeOf(up)); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("Acquire of an upgrade of a lock that was released: expected ErrNotHeld, seen %v", err)
	}
	reads, up = takeKind(t, bs[0], kindOf(backend.Shared)), takeKind(t, bs[1], kindOf(backend.Upgradeable))
	upgrade = queueFor(ctx, bs[1], upgradeOf(up), 0)
	upgrade.waits(t)
	wantReleased(t, up)
	await(t, "Queue of an upgrade to end with the lock that it is of", upgrade.done, hangLimit)
	if !errors.Is(upgrade.err, locker.ErrNotHeld) {
		t.Errorf("Queue of an upgrade of a lock that is released: expected ErrNotHeld, seen %v", upgrade.err)
	}
	wantReleased(t, reads)
}

func downgradeHandsOn(t testing.TB, h Harness) {
	bs := kinders(t, h, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Upgradeable} {
		written := takeKind(t, bs[0], kindOf(kind))
		next := queueFor(ctx, bs[1], kindOf(backend.Upgradeable), 0)
		next.waits(t)
		lowered := *written
		lowered.req.Group = &backend.Group{Kind: backend.Shared}
		if err := lowered.extend(ctx, longTTL); err != nil {
			t.Errorf("Extend that makes a lock of kind %d a shared one: expected nil, seen %v", kind, err)
		}
		o := next.soon(t, "an upgradeable lock beside one that was downgraded to be granted")
		if err := written.extend(ctx, longTTL); err != nil { // as it was sent before
			t.Errorf("Extend of a lock that was downgraded: expected nil, seen %v", err)
		}
		wantReleased(t, o)
		wantReleased(t, takeKind(t, bs[1], kindOf(backend.Upgradeable)))
		wantKindHeld(t, "beside one that was downgraded", bs[1], backend.Exclusive)
		wantReleased(t, written)
	}
}

func kindsAreWanted(t testing.TB, h Harness) {
	bs := kinders(t, h, 3)
	reads, up := takeKind(t, bs[0], kindOf(backend.Shared)), takeKind(t, bs[1], kindOf(backend.Upgradeable))
	asked := func(o *holding) (is bool, err error) {
		asks := *o
		asks.req.Wanted = func() { is = true }
		err = asks.extend(t.Context(), longTTL)
		return is, err
	}
	told := func(when string, o *holding, want bool) {
		t.Helper()
		if is, err := asked(o); err != nil || is != want {
			t.Errorf("Extend of a lock of kind %d, %s: expected Wanted to be called: %v, seen %v, %v", o.req.Group.Kind, when,
				want, is, err)
		}
	}
	for _, tt := range []struct {
		when      string
		req       backend.Request
		reads, up bool
	}{
		{"while another caller waits for an upgradeable lock", kindOf(backend.Upgradeable), false, true},
		{"while an upgrade waits", upgradeOf(up), true, false},
		{"while a writer waits", kindOf(backend.Exclusive), true, true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
		q := queueFor(ctx, bs[2], tt.req, 0)
		q.waits(t)
		told(tt.when, reads, tt.reads)
		told(tt.when, up, tt.up)
		cancel()
		await(t, "Queue to return when its context ends", q.done, hangLimit)
		for _, o := range []*holding{reads, up} { // the place in the queue may be given up in the background
			for end := time.Now().Add(slack); time.Now().Before(end); time.Sleep(slack / 100) {
				if is, err := asked(o); err != nil || !is {
					break
				}
			}
			told("while nobody waits", o, false)
		}
	}
	wantReleased(t, reads, up)
}
