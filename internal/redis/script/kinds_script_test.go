package script_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// kinds is one group of locks on a real server.
type kinds struct{ permits }

const (
	shared      = script.Shared
	upgradeable = script.Upgradeable
	exclusive   = script.Exclusive
)

func newKinds(t *testing.T) kinds {
	x := kinds{newPermits(t)}
	x.k = script.KeysOf("lock:", "{k}#rw")
	return x
}

// as is an attempt of o to have a lock.
func (x kinds) as(o string, kind script.Kind) script.Attempt {
	return script.Attempt{Keys: x.k, Token: o, Node: 1, Label: "of " + o, Wants: &script.Wants{Kind: kind}}
}

// upgrade is an attempt of o to have an exclusive lock beside the upgradeable one of from.
func (x kinds) upgrade(o, from string) script.Attempt {
	a := x.as(o, exclusive)
	a.Wants.From = from
	return a
}

func (x kinds) queues(a script.Attempt) script.Position {
	x.t.Helper()
	return x.position(a.Enqueue(permitsTTL, script.MaxPositionTTL, 0, ""))
}

// asks is a request of o, which waits.
func (x kinds) asks(o string, kind script.Kind) script.Position {
	x.t.Helper()
	return x.queues(x.as(o, kind))
}

func (x kinds) tries(a script.Attempt) script.Position {
	x.t.Helper()
	return x.position(a.Enqueue(permitsTTL, 0, 0, ""))
}

// has checks that o was granted a lock of that kind for its whole TTL, and returns its counter.
func (x kinds) has(o string, p script.Position, kind script.Kind) uint64 {
	x.t.Helper()
	if p.Status != script.Granted || !p.Whole || p.Kind != kind || p.Permits != nil {
		x.t.Fatalf("%s got %+v, want a lock of the kind %s", o, p, kind)
	}
	x.entry(o, permitsTTL)
	return p.Counter
}

// takes lets o have a lock that is free, and returns its counter.
func (x kinds) takes(o string, kind script.Kind) uint64 {
	x.t.Helper()
	return x.has(o, x.asks(o, kind), kind)
}

// given checks that o finds that it was granted a lock by somebody else, and returns its counter.
func (x kinds) given(o string, kind script.Kind) uint64 {
	x.t.Helper()
	if left := time.Until(time.UnixMicro(int64(x.score(o)))); left > script.ClaimWindow+50*time.Millisecond {
		x.t.Errorf("%s has %v to claim its lock", o, left)
	}
	p := x.position(x.as(o, kind).Claim(permitsTTL))
	if p.Status != script.Granted || p.Kind != kind {
		x.t.Fatalf("%s got %+v, want a lock of the kind %s", o, p, kind)
	}
	x.entry(o, permitsTTL)
	return p.Counter
}

// keptOut checks that locks of these kinds are refused to newcomers.
func (x kinds) keptOut(of ...script.Kind) {
	x.t.Helper()
	for _, kind := range of {
		if p := x.tries(x.as("newcomer", kind)); p.Status != script.Waiting {
			x.t.Errorf("a newcomer got %+v of the kind %s", p, kind)
		}
	}
}

func (x kinds) extends(o string, kind script.Kind, ttl time.Duration, c uint64) drivers.Reply {
	*x.asked = time.Now()
	return sendCommand(x.t, x.n, x.as(o, kind).Extend(ttl, c))
}

// lowers makes a shared lock of what o has.
func (x kinds) lowers(o string, ttl time.Duration, c uint64) drivers.Reply {
	*x.asked = time.Now()
	return sendCommand(x.t, x.n, x.as(o, shared).Share(ttl, c))
}

// There is one writer, or any number of readers with one that may write. Tokens grow.
func TestLocksOfAGroupExcludeEachOther(t *testing.T) {
	x := newKinds(t)
	r, u, r2 := x.takes("r", shared), x.takes("u", upgradeable), x.takes("r2", shared)
	x.keptOut(upgradeable, exclusive)
	if p := x.tries(x.as("u2", upgradeable)); p.Label != "of u" { // r ends before, and is not in the way
		t.Errorf("one that may write waits for %+v", p)
	}
	if again := x.asks("r", shared); again.Whole || again.Counter != r || again.Kind != shared {
		t.Errorf("the second delivery is granted %+v", again)
	}
	for _, o := range []string{"r", "u", "r2"} {
		x.keptOut(exclusive)
		x.is(o+" returns", x.returns(o, 0), int64(1))
	}
	w := x.takes("w", exclusive)
	x.keptOut(shared, upgradeable, exclusive)
	x.is("w returns", x.returns("w", w), int64(1))
	if !(r < u && u < r2 && r2 < w) {
		t.Errorf("tokens %d, %d, %d, %d", r, u, r2, w)
	}
	x.empty()
}

// A writer is overtaken by no reader, and a reader by none that came later. Readers in a row are served together, and
// pass those that wait to be upgradeable.
func TestLocksOfAGroupAreHandedOnInOrder(t *testing.T) {
	x := newKinds(t)
	x.takes("w", exclusive)
	ranks := map[string]int{"r1": 0, "u1": 0, "u2": 1, "r2": 1, "w1": 2, "r3": 3, "u3": 1, "w2": 4}
	kind := map[byte]script.Kind{'r': shared, 'u': upgradeable, 'w': exclusive}
	for _, o := range []string{"r1", "u1", "u2", "r2", "w1", "r3", "u3", "w2"} {
		x.waits(o, x.asks(o, kind[o[0]]), ranks[o])
	}
	if p := x.tries(x.as("newcomer", exclusive)); !p.Behind || p.Label != "of r1" {
		t.Errorf("a newcomer waits for %+v", p)
	}
	x.is("w returns", x.returns("w", 0), int64(1|waited))
	var last uint64
	for _, o := range []string{"r1", "u1", "r2"} {
		c := x.given(o, kind[o[0]])
		if c <= last {
			t.Errorf("%s has the token %d after %d", o, c, last)
		}
		last = c
	}
	x.keptOut(shared, upgradeable, exclusive)
	x.returns("r1", 0)
	x.returns("r2", 0)
	if p := x.tries(x.as("newcomer", shared)); !p.Behind || p.Label != "of w1" {
		t.Errorf("a reader waits for %+v", p)
	}
	x.is("u1 returns", x.returns("u1", 0), int64(1|waited))
	x.given("u2", upgradeable)
	x.is("u2 returns", x.returns("u2", 0), int64(1|waited))
	x.given("w1", exclusive)
	x.is("w1 returns", x.returns("w1", 0), int64(1|waited))
	x.given("r3", shared)
	x.given("u3", upgradeable)
	x.returns("u3", 0)
	x.is("r3 returns", x.returns("r3", 0), int64(1|waited))
	x.given("w2", exclusive)
	x.returns("w2", 0)
	x.empty()
}

// Readers pass those that wait to be upgradeable, however many these are, and whether they come or wait already.
func TestReadersPassThoseThatWaitToBeUpgradeable(t *testing.T) {
	x := newKinds(t)
	const n = 100
	x.takes("w", exclusive)
	for i := range n {
		x.asks(fmt.Sprint("u", i), upgradeable)
	}
	x.waits("r", x.asks("r", shared), 0)
	x.is("w returns", x.returns("w", 0), int64(1|waited))
	x.given("u0", upgradeable)
	x.given("r", shared)
	x.has("r2", x.tries(x.as("r2", shared)), shared)
	x.takes("r3", shared)
	x.keptOut(upgradeable, exclusive)
	x.is("u0 extends", x.extends("u0", upgradeable, permitsTTL, 0), int64(3))
	for _, o := range []string{"r", "r2", "r3"} {
		x.returns(o, 0)
	}
	for i := range n {
		o := fmt.Sprint("u", i)
		if i > 0 {
			x.given(o, upgradeable)
		}
		x.returns(o, 0)
	}
	x.empty()
}

// Those that wait to be upgradeable keep their places if the server's clock is set back, or forgets them.
func TestPlacesOfThoseThatWaitToBeUpgradeable(t *testing.T) {
	x := newKinds(t)
	x.takes("w", exclusive)
	first := x.asks("u1", upgradeable).Ticket
	x.asks("u2", upgradeable)
	x.s.Cmd(t, "ZREM", x.k.Queue(), "u1")
	again := x.position(x.as("u1", upgradeable).Enqueue(permitsTTL, script.MaxPositionTTL, first, ""))
	if again.Ticket != first || again.Rank != 0 {
		t.Errorf("u1 comes back: %+v", again)
	}
	x.waits("u2", x.asks("u2", upgradeable), 1)
	x.returns("w", 0)
	x.given("u1", upgradeable)
	x.waiting("u2")
}

// Nobody who comes later passes those that wait if the server's clock is set back meanwhile.
func TestTheClockIsSetBackWhileLocksOfAGroupAreWaitedFor(t *testing.T) {
	for _, later := range []script.Kind{shared, upgradeable, exclusive} {
		x := newKinds(t)
		x.takes("r", shared)
		x.waits("w", x.asks("w", exclusive), 0)
		x.waits("u", x.asks("u", upgradeable), 0)
		const back = 1e6 // µs: as if w and u had come when the clock was ahead
		for o, d := range map[string]int{"w": back, "u": -back} {
			x.s.Cmd(t, "ZADD", x.k.Queue(), "XX", "INCR", d, o)
		}
		first := x.asks("later", later)
		if p := x.asks("later", later); first.Status != script.Waiting || p.Ticket != first.Ticket {
			t.Errorf("%s: who comes later gets %+v, and then %+v", later, first, p)
		}
		x.is("r returns", x.returns("r", 0), int64(1|waited))
		x.given("w", exclusive)
		x.waiting("later", "u") // the last that waits to be upgradeable is in the middle
		x.is("w returns", x.returns("w", 0), int64(1|waited))
		x.given("u", upgradeable)
	}
}

// A step that could have told more than it may look at says so, also in the answer to one that waits no longer.
func TestAStepOfAGroupSaysThatThereAreMore(t *testing.T) {
	readers := func(x kinds, n int) {
		for i := range n {
			x.asks(fmt.Sprint("r", i), shared)
		}
	}
	for n, want := range map[int]bool{60: false, 70: true} {
		x := newKinds(t)
		x.takes("w", exclusive)
		readers(x, n)
		x.ends("w")
		if p := x.asks("r5", shared); p.Status != script.Granted || p.More != want {
			t.Errorf("the sixth of %d readers got %+v", n, p)
		}

		x = newKinds(t)
		x.takes("r", shared)
		x.takes("u", upgradeable)
		x.waits("x", x.queues(x.upgrade("x", "u")), 0)
		x.waits("w", x.asks("w", exclusive), 1)
		readers(x, n)
		x.s.Cmd(t, "ZREM", x.k.Queue(), "w")
		x.ends("u")
		if p := x.queues(x.upgrade("x", "u")); p.Status != script.NotUpgradeable || p.More != want {
			t.Errorf("the upgrade of what has ended, before %d readers, got %+v", n, p)
		}
	}
	x := newKinds(t)
	x.takes("w", exclusive)
	readers(x, 64)
	x.asks("u", upgradeable)
	x.ends("w")
	if p := x.tries(x.as("newcomer", shared)); p.Status != script.Granted || !p.More {
		t.Errorf("a newcomer that has told 64 readers, and could tell another one, got %+v", p)
	}
}

// An upgrade comes before all that wait, has no gap, and leaves what its caller had.
func TestUpgradeOfALockOfAGroup(t *testing.T) {
	x := newKinds(t)
	x.takes("r", shared)
	x.takes("u", upgradeable)
	x.waits("w", x.asks("w", exclusive), 0)
	x.waits("late", x.asks("late", shared), 1)
	if p := x.tries(x.upgrade("x", "u")); p.Status != script.Waiting || p.Behind || p.Label != "of r" {
		t.Errorf("TryLock of an upgrade got %+v", p)
	}
	ticket := x.queues(x.upgrade("x", "u")).Ticket
	p := x.position(x.upgrade("x", "u").Enqueue(permitsTTL, script.MaxPositionTTL, ticket, ""))
	if p.Rank != 0 || p.Behind || p.Label != "of r" || p.Ticket != ticket {
		t.Errorf("the upgrade got %+v", p)
	}
	x.is("r returns", x.returns("r", 0), int64(1|waited))
	c := x.given("x", exclusive)
	x.waiting("w", "late")
	x.keptOut(shared, upgradeable, exclusive)
	if p := x.queues(x.upgrade("x", "u")); p.Counter != c {
		t.Errorf("the second delivery got %+v", p)
	}
	if u := x.asks("u", upgradeable); u.Status != script.Granted || u.Counter >= c {
		t.Errorf("what was upgraded got %+v", u)
	}
	x.is("x is undone", x.returns("x", 0), int64(1))
	x.waiting("w", "late")
	x.has("y", x.queues(x.upgrade("y", "u")), exclusive) // at once
	x.is("y is undone", x.returns("y", 0), int64(1))
	x.has("z", x.tries(x.upgrade("z", "u")), exclusive)
	x.is("z is undone", x.returns("z", 0), int64(1))
	x.s.Cmd(t, "HDEL", x.k.Wait(), "!y")
	x.has("y", x.queues(x.upgrade("y", "u")), exclusive)
	x.is("u returns", x.returns("u", 0), int64(1))
	x.waiting("w", "late")
	x.is("y returns", x.returns("y", 0), int64(1|waited))
	x.given("w", exclusive)
	x.is("w returns", x.returns("w", 0), int64(1|waited))
	x.given("late", shared)
	x.returns("late", 0)
	x.empty()
}

// An upgrade that finds that the others have ended leaves the queue, and one of what has ended is refused although more
// has ended than a step removes.
func TestUpgradeAfterTheTimeOfOthers(t *testing.T) {
	x := newKinds(t)
	x.takes("r", shared)
	x.takes("u", upgradeable)
	x.waits("x", x.queues(x.upgrade("x", "u")), 0)
	x.waits("w", x.asks("w", exclusive), 1)
	x.ends("r")
	x.has("x", x.queues(x.upgrade("x", "u")), exclusive)
	x.waiting("w")
	x.leaves("w")
	x.returns("x", 0)
	const n = 100
	for i := range n {
		x.takes(fmt.Sprint("r", i), shared)
	}
	for i := range n {
		x.ends(fmt.Sprint("r", i))
	}
	x.ends("u") // after the others
	if p := x.tries(x.upgrade("y", "u")); p.Status != script.NotUpgradeable {
		t.Errorf("the upgrade got %+v", p)
	}
}

// An upgrade of what is not held, not any more, or is of another kind, is refused, also while it waits. Those behind it
// are served then.
func TestUpgradeOfWhatHasEnded(t *testing.T) {
	for what, end := range map[string]func(x kinds, u uint64){
		"nothing": nil,
		"a return": func(x kinds, _ uint64) {
			x.is("u returns", x.returns("u", 0), int64(1|waited))
		},
		"an order": func(x kinds, _ uint64) {
			s, _ := script.ReadState(sendCommand(x.t, x.n, x.k.InspectGroup("u", 2)))
			x.is("u is forced", sendCommand(x.t, x.n, x.k.ForceEntry(s.Value, time.Minute, nil)), int64(1))
		},
		"a downgrade": func(x kinds, u uint64) { x.is("u is lowered", x.lowers("u", permitsTTL, u), int64(1)) },
		"its time":    func(x kinds, _ uint64) { x.ends("u") },
	} {
		x := newKinds(t)
		e := listen(t, x.s, "X's")
		gone := func(p script.Position) {
			t.Helper()
			if p.Status != script.NotUpgradeable {
				t.Errorf("%s: the upgrade got %+v", what, p)
			}
		}
		x.takes("r", shared)
		gone(x.tries(x.upgrade("x", "u")))
		gone(x.queues(x.upgrade("x", "r")))
		if end == nil {
			x.waiting()
			continue
		}
		u := x.takes("u", upgradeable)
		waits := x.position(x.upgrade("x", "u").Enqueue(permitsTTL, script.MaxPositionTTL, 0, "X's"))
		x.waits("x", waits, 0)
		x.waits("behind", x.asks("behind", shared), 1)
		end(x, u)
		if what != "its time" { // nobody has looked yet
			e.hears("X's ", "X's x") // who is behind has asked whether x is alive
		}
		p := x.position(x.upgrade("x", "u").Enqueue(permitsTTL, script.MaxPositionTTL, waits.Ticket, "X's"))
		gone(p)
		x.given("behind", shared)
		x.waiting()
	}
}

// A downgrade hands on, and an extension that was sent before it does not undo it. It extends, for one lease only.
func TestDowngradeOfALockOfAGroup(t *testing.T) {
	for _, kind := range []script.Kind{exclusive, upgradeable} {
		x := newKinds(t)
		c := x.takes("w", kind)
		x.is("another lease", x.lowers("w", time.Hour, c-1), int64(3))
		x.is("another owner", x.lowers("nobody", time.Hour, c), int64(0))
		x.entry("w", permitsTTL)
		x.waits("u", x.asks("u", upgradeable), 0)
		x.is("w is lowered", x.lowers("w", time.Hour, c), int64(1))
		x.entry("w", time.Hour)
		x.given("u", upgradeable)
		x.is("an extension comes late", x.extends("w", kind, time.Minute, c), int64(1))
		x.is("w is lowered again", x.lowers("w", time.Minute, c), int64(1))
		x.entry("w", time.Hour)
		x.takes("r", shared)
		x.keptOut(exclusive, upgradeable)
		x.waits("w2", x.asks("w2", exclusive), 0)
		x.is("w is lowered while another waits", x.lowers("w", time.Minute, c), int64(1|waited))
		for _, o := range []string{"u", "r", "w"} {
			x.keptOut(exclusive)
			x.returns(o, 0)
		}
		x.given("w2", exclusive)
		x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
		p := x.position(x.as("w2", exclusive).Claim(permitsTTL))
		x.is("w2 is lowered without memory", x.lowers("w2", time.Hour, p.Counter), int64(1))
		x.entry("w2", time.Hour)
		x.returns("w2", 0)
		x.empty()
	}
}

// Many readers are handed the group in several steps, also by a downgrade. They end by themselves.
func TestManyReaders(t *testing.T) {
	x := newKinds(t)
	const n = 100
	c := x.takes("w", exclusive)
	for i := range n {
		x.asks(fmt.Sprint("r", i), shared)
	}
	x.is("w is lowered", x.lowers("w", time.Hour, c), int64(1|again))
	x.is("and again", x.lowers("w", time.Hour, c), int64(1))
	x.waiting()
	for i := range n {
		x.given(fmt.Sprint("r", i), shared)
	}
	x.waits("w2", x.asks("w2", exclusive), 0)
	for i := range n {
		x.ends(fmt.Sprint("r", i))
	}
	x.is("w returns", x.returns("w", 0), int64(1|again))
	x.is("and again", x.returns("w", 0), int64(0|waited))
	x.given("w2", exclusive)
	x.is("w2 extends", x.extends("w2", exclusive, time.Minute, 0), int64(3))
	x.returns("w2", 0)
	x.empty()
}

// What was held too briefly keeps others out for a while, without an owner.
func TestLockOfAGroupThatIsKept(t *testing.T) {
	x := newKinds(t)
	c := x.takes("w", exclusive)
	r := script.Release{Attempt: x.as("w", exclusive), Certify: c, Keep: time.Minute, Tombstone: time.Minute}
	x.is("w returns", x.releases(r), int64(1))
	x.keptOut(shared, upgradeable, exclusive)
	x.waits("r", x.asks("r", shared), 0)
	x.ends("hold:w")
	x.has("r", x.asks("r", shared), shared)
}

// An owner learns of those that may have to wait for it, and of no others.
func TestLocksOfAGroupThatAreWanted(t *testing.T) {
	x := newKinds(t)
	r, u := x.takes("r", shared), x.takes("u", upgradeable)
	wanted := func(what string, reader, upgrader bool) {
		t.Helper()
		for o, want := range map[string]bool{"r": reader, "u": upgrader} {
			s, err := script.ReadState(sendCommand(t, x.n, x.k.InspectGroup(o, 1)))
			if err != nil || s.Waiting > 0 != want {
				t.Errorf("%s: %d wait for %s, and %v", what, s.Waiting, o, err)
			}
			x.is(o+" extends", x.extends(o, shared, time.Hour, map[string]uint64{"r": r, "u": u}[o]), int64(17))
		}
	}
	for _, tt := range []struct {
		what        string
		a           script.Attempt
		reads, mayW bool
	}{
		{"one that may write", x.as("u2", upgradeable), false, true},
		{"an upgrade", x.upgrade("x", "u"), true, false},
		{"a writer", x.as("w", exclusive), true, true},
	} {
		x.queues(tt.a)
		wanted(tt.what, tt.reads, tt.mayW)
		x.leaves(tt.a.Token)
		wanted("after "+tt.what, false, false)
	}
}

// A group is of locks or of permits, and a key that old programs use is left alone.
func TestGroupOfLocksIsOneOfNothingElse(t *testing.T) {
	x := newKinds(t)
	x.takes("r", shared)
	for _, p := range []script.Position{
		x.permits.asks("p", 2, 1), x.permits.tries("p", 2, 1),
	} {
		if p.Status != script.NotALock {
			t.Errorf("permits of a group of locks: %+v", p)
		}
	}
	x.returns("r", 0)
	x.permits.has("p", x.permits.asks("p", 2, 1), 0)
	for _, p := range []script.Position{x.asks("r", shared), x.tries(x.as("r", exclusive)), x.asks("r", upgradeable)} {
		if p.Status != script.NotALock {
			t.Errorf("locks of a group of permits: %+v", p)
		}
	}
	x.returns("p", 0)
	x.empty()
	for _, name := range []string{"gate", "intent", "0"} {
		name = "lock:{k}#rw" + name
		x.s.Cmd(t, "SET", name, "0000000000000001|a|1|label", "PX", 10000)
		if p := x.asks("r", shared); p.Status != script.Apart {
			t.Errorf("%s: %+v", name, p)
		}
		x.s.Cmd(t, "DEL", name)
	}
	x.takes("r", shared)
}

// Half of a group of locks is none.
func TestHalfOfAGroupOfLocksIsLost(t *testing.T) {
	x := newKinds(t)
	for _, lost := range []string{x.k.Lock, x.k.Entries()} {
		c := x.takes("a", exclusive)
		x.s.Cmd(t, "DEL", lost)
		x.is("a extends", x.extends("a", exclusive, permitsTTL, c), int64(0))
		x.is("a is lowered", x.lowers("a", permitsTTL, c), int64(0))
		x.takes("b", exclusive)
		x.is("b returns", x.returns("b", 0), int64(1))
		x.empty()
	}
}
