package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// lockOf is a request for a lock of a group.
func lockOf(token string, kind backend.Kind) backend.Request {
	req := request("k", token)
	req.TTL, req.Group = time.Minute, &backend.Group{Kind: kind}
	return req
}

func reads(token string) backend.Request  { return lockOf(token, backend.Shared) }
func writes(token string) backend.Request { return lockOf(token, backend.Exclusive) }
func mayWrite(token string) backend.Request {
	return lockOf(token, backend.Upgradeable)
}

// raised is a request for the upgrade of what from has.
func raised(token, from string) backend.Request {
	req := writes(token)
	req.Group.From = from
	return req
}

func taken(t *testing.T, b *memory.Backend, reqs ...backend.Request) {
	t.Helper()
	for _, req := range reqs {
		if _, err := b.Acquire(t.Context(), req); err != nil {
			t.Errorf("%s: %v", req.Token, err)
		}
	}
}

func kept(t *testing.T, b *memory.Backend, reqs ...backend.Request) {
	t.Helper()
	for _, req := range reqs {
		if _, err := b.Acquire(t.Context(), req); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("%s: %v, want ErrHeld", req.Token, err)
		}
	}
}

func returned(t *testing.T, b *memory.Backend, reqs ...backend.Request) {
	t.Helper()
	for _, req := range reqs {
		returns(t, b, req)
	}
}

// There is one writer, or any number of readers with one that may write.
func TestKindsThatExcludeEachOther(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		taken(t, b, reads("r1"), mayWrite("u"), reads("r2"))
		kept(t, b, mayWrite("u2"), writes("w"))
		returned(t, b, reads("r1"), mayWrite("u"), reads("r2"))
		taken(t, b, writes("w"))
		kept(t, b, reads("r"), mayWrite("u"), writes("w2"))
		returned(t, b, writes("w"))
		if left := memory.Left(b); len(left) > 0 {
			t.Errorf("%q is still stored", left)
		}
	})
}

// A writer is overtaken by no reader, and a reader by none that came later. Those that want to read pass those that
// wait for somebody else who may write: they are in each other's way by nothing.
func TestKindsAreHandedOnInOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		taken(t, b, writes("w"))
		var queued []<-chan error
		for _, req := range []backend.Request{
			reads("r1"), mayWrite("u1"), mayWrite("u2"), reads("r2"), writes("w1"), reads("r3"), writes("w2"),
		} {
			queued = append(queued, queue(t.Context(), b, req))
		}
		kept(t, b, reads("r"))
		returned(t, b, writes("w"))
		for i, name := range []string{"r1", "u1", "", "r2"} {
			if name != "" {
				soon(t, name, queued[i], nil)
			}
		}
		waits(t, "u2 beside u1", queued[2])
		waits(t, "w1", queued[4])
		waits(t, "r3 behind w1", queued[5])
		kept(t, b, reads("r"))
		returned(t, b, reads("r1"), mayWrite("u1"), reads("r2"))
		soon(t, "u2", queued[2], nil)
		waits(t, "w1 behind u2", queued[4])
		returned(t, b, mayWrite("u2"))
		soon(t, "w1", queued[4], nil)
		waits(t, "r3", queued[5])
		returned(t, b, writes("w1"))
		soon(t, "r3", queued[5], nil)
		waits(t, "w2", queued[6])
		returned(t, b, reads("r3"))
		soon(t, "w2", queued[6], nil)
		returned(t, b, writes("w2"))
	})
}

// While a caller waits for an upgradeable lock, newcomers that would write are kept out, and readers are not.
func TestReaderPassesThoseOfAnotherKind(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		taken(t, b, mayWrite("u"))
		second := queue(t.Context(), b, mayWrite("u2"))
		taken(t, b, reads("r"))
		soon(t, "r2", queue(t.Context(), b, reads("r2")), nil)
		kept(t, b, mayWrite("u3"), writes("w"))
		returned(t, b, mayWrite("u"))
		soon(t, "u2", second, nil)
		returned(t, b, mayWrite("u2"), reads("r"), reads("r2"))
	})
}

// An upgrade comes before all that wait, has no gap, and leaves what its caller had.
func TestUpgradeOfOneOfTheKinds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		taken(t, b, reads("r"), mayWrite("u"))
		writer := queue(t.Context(), b, writes("w"))
		reader := queue(t.Context(), b, reads("late"))
		upgrade := queue(t.Context(), b, raised("x", "u"))
		waits(t, "an upgrade beside a reader", upgrade)
		returned(t, b, reads("r"))
		soon(t, "the upgrade", upgrade, nil)
		taken(t, b, raised("x", "u")) // sent again
		waits(t, "a writer that came before", writer)
		if err := b.Extend(t.Context(), mayWrite("u")); err != nil {
			t.Errorf("what was upgraded: %v", err)
		}
		returned(t, b, raised("x", "u")) // the upgrade is undone
		waits(t, "a writer beside what was upgraded", writer)
		taken(t, b, raised("y", "u"))
		returned(t, b, mayWrite("u"))
		waits(t, "a writer beside the upgraded one", writer)
		returned(t, b, raised("y", "u"))
		soon(t, "the writer", writer, nil)
		returned(t, b, writes("w"))
		soon(t, "the reader", reader, nil)
		returned(t, b, reads("late"))
	})
}

// An upgrade of what is not held, not any more, or is of another kind, is refused, also while it waits.
func TestUpgradeOfNoneOfTheKinds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		refused := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, locker.ErrNotHeld) {
				t.Errorf("%s: %v, want ErrNotHeld", what, err)
			}
		}
		for _, acquire := range []func(req backend.Request) error{
			func(req backend.Request) error { _, err := b.Acquire(t.Context(), req); return err },
			func(req backend.Request) error { return <-queue(t.Context(), b, req) },
		} {
			refused("an upgrade of nothing", acquire(raised("x", "u")))
			taken(t, b, reads("r"))
			refused("an upgrade of a reader", acquire(raised("x", "r")))
			returned(t, b, reads("r"))
		}
		for what, end := range map[string]func(u backend.Request){
			"time":     func(backend.Request) { time.Sleep(time.Minute) },
			"a leave":  func(u backend.Request) { returned(t, b, u) },
			"an order": func(backend.Request) { _, _ = b.ForceRelease(t.Context(), "k", "u") },
		} {
			long := reads("r")
			long.TTL = time.Hour
			taken(t, b, mayWrite("u"), long)
			upgrade := queue(t.Context(), b, raised("x", "u"))
			behind := queue(t.Context(), b, reads("behind"))
			waits(t, "the upgrade", upgrade)
			waits(t, "a reader behind it", behind)
			end(mayWrite("u"))
			refused("what is upgraded ends by "+what, <-upgrade)
			soon(t, "a reader behind it", behind, nil)
			returned(t, b, reads("behind"), long)
		}
		if left := memory.Left(b); len(left) > 0 {
			t.Errorf("%q is still stored", left)
		}
	})
}

// A downgrade hands on, and an extension that was sent before it does not undo it.
func TestDowngradeOfOneOfTheKinds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		for _, kind := range []backend.Kind{backend.Exclusive, backend.Upgradeable} {
			taken(t, b, lockOf("w", kind))
			next := queue(t.Context(), b, mayWrite("u"))
			waits(t, "the next", next)
			if err := b.Extend(t.Context(), reads("w")); err != nil {
				t.Error(err)
			}
			soon(t, "the next", next, nil)
			if err := b.Extend(t.Context(), lockOf("w", kind)); err != nil { // comes late
				t.Error(err)
			}
			returned(t, b, mayWrite("u"))
			taken(t, b, mayWrite("u2"))
			writer := queue(t.Context(), b, writes("w2"))
			returned(t, b, mayWrite("u2"))
			waits(t, "a writer beside a reader", writer)
			returned(t, b, reads("w"))
			soon(t, "the writer", writer, nil)
			returned(t, b, writes("w2"))
		}
	})
}

// Those whose leaving would help are told that somebody waits: at once, by the answer to an extension, and if they ask
// later.
func TestKindsThatAreWanted(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		told := map[string]int{}
		hear := func(req backend.Request) { b.NotifyWanted(req, func() { told[req.Token]++ }) }
		reader, upgrader := reads("r"), mayWrite("u")
		taken(t, b, reader, upgrader)
		hear(reader)
		hear(upgrader)
		wants := func(what string, reader, upgrader int) {
			t.Helper()
			for token, n := range map[string]int{"r": reader, "u": upgrader} {
				if (told[token] > 0) != (n > 0) {
					t.Errorf("%s: %s was told %d times", what, token, told[token])
				}
				answer := 0
				req := map[string]backend.Request{"r": reads("r"), "u": mayWrite("u")}[token]
				req.Wanted = func() { answer++ }
				if err := b.Extend(t.Context(), req); err != nil || answer != n {
					t.Errorf("%s: %v, and %d answers for %s", what, err, answer, token)
				}
				late := 0
				b.NotifyWanted(req, func() { late++ })()
				if late != n {
					t.Errorf("%s: %s is told %d times when it asks", what, token, late)
				}
			}
			clear(told)
		}
		wants("nobody waits", 0, 0)
		ctx, leave := context.WithCancel(t.Context())
		upgrade := queue(ctx, b, raised("x", "u"))
		again := queue(ctx, b, raised("x2", "u"))
		wants("an upgrade waits, and is asked for twice", 1, 0)
		leave()
		<-upgrade
		<-again
		ctx, leave = context.WithCancel(t.Context())
		second := queue(ctx, b, mayWrite("u2"))
		wants("another one that may write waits", 0, 1)
		leave()
		<-second
		ctx, leave = context.WithCancel(t.Context())
		writer := queue(ctx, b, writes("w"))
		wants("a writer waits", 1, 1)
		leave()
		<-writer
		wants("nobody waits any more", 0, 0)
		returned(t, b, reader, upgrader)
	})
}

// The error names the first waiter, or a holder that is in the way.
func TestKindsThatAreHeldAreDescribed(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		says := func(req backend.Request, label string, left time.Duration) {
			t.Helper()
			_, err := b.Acquire(t.Context(), req)
			var held *locker.HeldError
			if !errors.As(err, &held) || held.Label != label || held.Remaining != left {
				t.Errorf("%s: %v; want %q and %v", req.Token, err, label, left)
			}
		}
		soonOver, long := reads("r"), mayWrite("u")
		soonOver.TTL, soonOver.Label, long.Label = time.Second, "reader", "upgrader"
		taken(t, b, soonOver, long)
		says(writes("w"), "reader", time.Second)
		says(mayWrite("u2"), "upgrader", time.Minute)
		says(raised("x", "u"), "reader", time.Second)
		first := writes("w")
		first.Label = "writer"
		ctx, leave := context.WithCancel(t.Context())
		writer := queue(ctx, b, first)
		says(reads("r2"), "writer", 0)
		says(raised("x", "u"), "reader", time.Second)
		leave()
		<-writer
		second := mayWrite("u2")
		second.Label = "second"
		ends, end := context.WithCancel(t.Context())
		passed := queue(ends, b, second)
		ctx, leave = context.WithCancel(t.Context())
		writer = queue(ctx, b, first)
		says(reads("r2"), "writer", 0)
		leave()
		saw(t, <-writer, "second", 0)
		writer = queue(t.Context(), b, first)
		end()
		saw(t, <-passed, "upgrader", time.Minute)
		returned(t, b, soonOver, long)
		soon(t, "the writer", writer, nil)
		returned(t, b, first)
	})
}

// saw checks how an error of a call that has waited describes who is in front.
func saw(t *testing.T, err error, label string, left time.Duration) {
	t.Helper()
	var held *locker.HeldError
	if !errors.As(err, &held) || held.Label != label || held.Remaining != left {
		t.Errorf("%v; want %q and %v", err, label, left)
	}
}
