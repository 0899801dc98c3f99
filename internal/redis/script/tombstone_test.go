package script_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// deadline is what the tombstone of o says, as its kind and how long it lives yet.
func (x queue) deadline(o string) (kind string, left time.Duration) {
	x.t.Helper()
	value, _ := x.s.Cmd(x.t, "HGET", x.k.Wait(), "!"+o).(string)
	kind, ms, _ := strings.Cut(value, ":")
	var n int64
	_, _ = fmt.Sscan(ms, &n)
	return kind, time.Until(time.UnixMilli(n))
}

// bury writes a tombstone as the scripts do.
func (x queue) bury(o, kind string, life time.Duration) {
	x.t.Helper()
	x.s.Cmd(x.t, "HSET", x.k.Wait(), "!"+o, fmt.Sprint(kind, ":", time.Now().Add(life).UnixMilli()))
}

func TestKindsOfTombstones(t *testing.T) {
	x := newTurns(t)
	for _, release := range []func(o, args string) drivers.Reply{
		func(o, args string) drivers.Reply { return x.queue.release(o, args) },
		func(o, args string) drivers.Reply { return x.release(o + ":" + args + ":") },
		func(o, args string) drivers.Reply {
			return send(t, x.n, releaseScript, releaseScript.Command(releaseKeys(x.k), text(o), undoing(args)))
		},
	} {
		x.s.Cmd(t, "FLUSHALL")
		want := func(o, kind string) {
			t.Helper()
			if got, left := x.deadline(o); got != kind || kind != "" && (left < 8*time.Second || left > 11*time.Second) {
				t.Errorf("the tombstone of %s says %q, for %v; want %q", o, got, left, kind)
			}
		}
		send(t, x.n, acquireScript, acquireScript.Command(acquireKeys(x.k), text("a|12"), "10000", "1", "0"))
		x.is("release", release("a|12", "10000:0:0"), int64(1))
		want("a", "d12")
		x.is("release, again", release("a|12", "60000:0:0"), int64(2))
		want("a", "d12")
		x.is("release of nothing", release("b|1", "10000:0:0"), int64(0))
		want("b", "x")
		token := acquire(t, x.n, "c", 10*time.Second)
		x.is("release after a newer token", release("c", "10000:0:"+fmt.Sprint(token-1)), int64(3))
		want("c", "x")
		acquire(t, x.n, "d", 10*time.Second)
		x.is("release with a known outcome", release("d", "0:0:0"), int64(1))
		want("d", "")
	}
}

// A tombstone ends at its deadline, although the hash lives on with others.
func TestTombstonesEnd(t *testing.T) {
	x := newQueue(t)
	x.s.Cmd(t, "HSET", x.k.Wait(), "other", "") // keeps the hash alive
	for _, life := range []time.Duration{time.Minute, -time.Second} {
		buried := life > 0
		x.s.Cmd(t, "DEL", "k")
		for _, kind := range []string{"x", "d1", "f"} {
			x.bury("a", kind, life)
			r := send(t, x.n, acquireScript, acquireCommand("a", 1, 0))
			if got := r == int64(-1); got != buried {
				t.Errorf("kind %s, %v: acquire answers %v", kind, life, r)
			}
			x.s.Cmd(t, "DEL", "k")
			x.bury("a", kind, life)
			if got := x.enqueue("a", usualArgs)[0] == int64(-1); got != buried {
				t.Errorf("kind %s, %v: enqueue gave up: %v", kind, life, got)
			}
			x.s.Cmd(t, "DEL", "k")
			x.bury("a", kind, life)
			want := int64(0)
			switch {
			case buried && kind == "f":
				want = 4
			case buried && kind == "d1":
				want = 2
			}
			x.is(fmt.Sprintf("kind %s, %v: release", kind, life), x.release("a", "10000:0:0"), want)
		}
	}
}

// The hash lives as long as what is in it that lives longest.
func TestHashOfTombstonesIsOnlyEverProlonged(t *testing.T) {
	x := newQueue(t)
	lives := func(what string, d time.Duration) {
		t.Helper()
		if left := x.s.PTTL(t, x.k.Wait()); left > d || left < d-5*time.Second {
			t.Errorf("after %s, the hash lives for %v, want %v", what, left, d)
		}
	}
	x.leave("x")
	lives("a tombstone of 10 s", 10*time.Second)
	x.release("y", "60000:0:0")
	lives("one of a minute", time.Minute)
	x.leave("z")
	lives("one of 10 s", time.Minute)
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	lives("the first waiter", time.Minute)
	x.enqueue("b", usualArgs)
	lives("a heartbeat", time.Minute)
	x.s.Cmd(t, "PEXPIRE", x.k.Wait(), 1000)
	x.enqueue("b", "10000:6000:1:1:")
	lives("a heartbeat when a second was left", 2*script.MaxPositionTTL)
	x.s.Cmd(t, "PEXPIRE", x.k.Wait(), 1000)
	x.leave("w")
	lives("a tombstone when a second was left", 10*time.Second)
}

// The first to join an empty queue leaves the tombstones of others where they are.
func TestJoiningKeepsTombstones(t *testing.T) {
	x := newTurns(t)
	x.queue.leave("x")
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	x.waiting("b")
	x.ask("w", forTurn)
	if n := x.tombstones(); n != 1 {
		t.Errorf("%d tombstones, want 1", n)
	}
	x.is("a late copy", x.enqueue("x", usualArgs), []drivers.Reply{int64(-1)})
}

// Tombstones that are over go when others are written, so that they do not pile up, and nothing else goes with them.
func TestTombstonesAreSwept(t *testing.T) {
	for _, many := range []int{20, 3000} { // in a small hash and in a large one, of which a part is swept at a time
		x := newQueue(t)
		x.enqueue("a", "600000:6000:0:1:") // for longer than the test takes on any machine
		x.enqueue("b", usualArgs)
		x.bury("alive", "d1", time.Minute)
		args := []any{x.k.Wait()}
		for i := range many {
			args = append(args, fmt.Sprint("!dead", i), "x:1000")
		}
		x.s.Cmd(t, append([]any{"HSET"}, args...)...)
		writes, heard := 0, time.Now()
		for ; x.tombstones() > many/10+writes+1; writes++ {
			if writes > 3*many {
				t.Fatalf("%d of %d tombstones are left", x.tombstones(), many)
			}
			if time.Since(heard) > time.Second { // on a busy machine, all of them take longer than a position lasts
				x.enqueue("b", usualArgs)
				heard = time.Now()
			}
			x.leave(fmt.Sprint("o", writes))
		}
		t.Logf("%d writes have swept %d of %d", writes, many+writes+1-x.tombstones(), many)
		if kind, _ := x.deadline("alive"); kind != "d1" {
			t.Errorf("a tombstone that is not over says %q", kind)
		}
		x.waiting("b")
	}
}

// A refusal of the sweep or of the tombstone is not one of the release.
func TestReleaseSucceedsWithoutATombstone(t *testing.T) {
	x := newQueue(t)
	acquire(t, x.n, "a", 10*time.Second)
	x.s.Cmd(t, "SET", x.k.Wait(), "not a hash")
	x.is("release", send(t, x.n, releaseScript, releaseScript.Command(releaseKeys(x.k), text("a"), undoing("10000:0:0"))),
		int64(1))
	x.held("")
}
