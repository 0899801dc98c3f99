package script_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// The schedules of docs/safety.md. Each of them broke an earlier draft.

func TestScheduleLostPush(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "B's")
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs+"B's")
	x.release("a", "0:0:0")
	e.hears("B's b") // lost on its way
	token := x.granted("b", x.enqueue("b", usualArgs+"B's"), 0, script.ClaimWindow)
	if left := x.s.PTTL(t, "k"); left > script.ClaimWindow {
		t.Errorf("the heartbeat prolonged the lock to %v", left)
	}
	if claimed := x.granted("b", x.claim("b", "10000"), 10*time.Second, 10*time.Second); claimed != token {
		t.Errorf("token %d by heartbeat, %d by claim", token, claimed)
	}
}

func TestScheduleReleaseDeliveredTwice(t *testing.T) {
	for _, args := range []string{"0:0:0", "10000:0:0", "0:5000:0", "10000:5000:0"} {
		x := newQueue(t)
		e := listen(t, x.s, "B's", "C's")
		x.enqueue("a", usualArgs)
		x.enqueue("b", usualArgs+"B's")
		x.enqueue("c", usualArgs+"C's")
		told := int64(waited)
		if strings.Contains(args, ":5000:") {
			told = 0
		}
		x.is("release", x.release("a", args), 1|told)
		if strings.Contains(args, ":5000:") {
			x.s.Cmd(t, "DEL", "k") // the rest is over
			x.granted("b", x.enqueue("b", usualArgs+"B's"), 10*time.Second, 10*time.Second)
		} else {
			e.hears("B's b")
		}
		before := x.s.PTTL(t, "k")
		again := int64(4) // b's
		if strings.HasPrefix(args, "10000") {
			again = 2
		}
		x.is(args+" again", x.release("a", args), again)
		e.hears()
		x.held("b")
		x.waiting("c")
		if after := x.s.PTTL(t, "k"); after > before {
			t.Errorf("%s again: b's lock lives for %v instead of %v", args, after, before)
		}
	}
}

func TestScheduleLeaveDeliveredTwice(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "C's", "D's")
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	x.enqueue("c", usualArgs+"C's")
	x.enqueue("d", usualArgs+"D's")
	x.is("leave while waiting", x.leave("b"), int64(4))
	x.waiting("c", "d")
	x.is("leave, again", x.leave("b"), int64(4))
	x.is("leave while holding", x.leave("a"), int64(1|waited))
	e.hears("C's c")
	x.is("leave, again", x.leave("a"), int64(2))
	x.is("leave of b, again", x.leave("b"), int64(4))
	e.hears()
	x.held("c")
	x.waiting("d")
}

// A waiter that leaves without a tombstone leaves the queue all the same: the lock that expires next is not granted to
// it.
func TestScheduleLeaveWithoutTombstone(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	x.enqueue("c", usualArgs)
	x.is("leave", x.release("b", "0:0:0"), int64(4))
	x.waiting("c")
	x.s.Cmd(t, "DEL", "k") // expired
	x.waits("d", x.enqueue("d", usualArgs), 0)
	x.held("c")
}

func TestScheduleGrantedAgainAfterAnother(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	x.release("a", "0:0:0")
	old := x.granted("b", x.enqueue("b", usualArgs), 0, script.ClaimWindow) // and stalls
	x.s.Cmd(t, "DEL", "k")                                                  // expired
	c := x.granted("c", x.enqueue("c", usualArgs), 0, 10*time.Second)
	x.waits("b", x.enqueue("b", usualArgs), 0) // a late heartbeat
	x.release("c", "0:0:"+fmt.Sprint(c))
	x.held("b")
	x.is("the late extension", x.extend("b", old), int64(3))
	if token := x.granted("b", x.claim("b", "10000"), 0, 10*time.Second); token <= c {
		t.Errorf("the old push gives token %d, c had %d", token, c)
	}
	x.is("release with the old token", x.release("b", "0:0:"+fmt.Sprint(old)), int64(3))
}

func TestScheduleLateHeartbeatLeavesNoGhost(t *testing.T) {
	x := newQueue(t)
	x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	x.is("release", x.release("a", "10000:0:0"), int64(1))
	x.is("a late copy", x.enqueue("a", usualArgs), []drivers.Reply{int64(-1)})
	x.is("a late claim", x.claim("a", "10000"), []drivers.Reply{int64(0)})
	x.held("")

	x.is("leave before enqueue", x.leave("b"), int64(0))
	x.is("a late copy", x.enqueue("b", usualArgs), []drivers.Reply{int64(-1)})
	x.held("")
	x.enqueue("c", usualArgs)
	x.enqueue("d", usualArgs)
	x.leave("d")
	x.is("a late heartbeat", x.enqueue("d", usualArgs), []drivers.Reply{int64(-1)})
	x.is("of one that does not wait", x.enqueue("d", "10000:0:0:1:"), []drivers.Reply{int64(-1)})
	x.waiting()
	x.release("c", "0:0:0")
	x.held("")

	// One whose tombstone is over is granted the lock, and gives it back when it hears of that.
	x.exhume("d")
	x.enqueue("e", usualArgs)
	x.enqueue("d", usualArgs)
	x.enqueue("f", usualArgs)
	x.release("e", "0:0:0")
	x.held("d")
	x.is("leave", x.leave("d"), int64(1|waited))
	x.held("f")
}

// One without a channel keeps its place among those that have one.
func TestScheduleWithoutChannel(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "C's", "new")
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	ticket := x.waits("c", x.enqueue("c", usualArgs+"C's"), 1)
	x.release("a", "0:0:0")
	e.hears()
	x.granted("b", x.enqueue("b", usualArgs), 0, script.ClaimWindow) // finds itself granted
	// One that has a new connection, and has lost its place meanwhile, goes back to it.
	x.enqueue("d", usualArgs)
	x.s.Cmd(t, "ZREM", x.k.Queue(), "c")
	x.waits("c", x.enqueue("c", "10000:6000:"+fmt.Sprint(ticket)+":1:new"), 0)
	x.waiting("c", "d")
	x.release("b", "0:0:0")
	e.hears("new c")
}

// A releaser that may not publish releases, and serves the next, who will ask.
func TestSchedulePublishRefused(t *testing.T) {
	x := newQueue(t)
	x.s.User(t, "mute", "on", ">pw", "~*", "+@all", "-publish")
	mute := x
	mute.n = reach(t, x.s, func() (redis.Conn, error) {
		return redis.Dial("tcp", x.s.Addr(), redis.DialUsername("mute"), redis.DialPassword("pw"))
	})
	e := listen(t, x.s, "B's")
	mute.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs+"B's")
	x.enqueue("c", usualArgs+"B's")
	x.is("release", mute.release("a", "0:0:0"), int64(1|waited))
	e.hears()
	x.held("b")
	x.waiting("c")
	x.granted("b", x.enqueue("b", usualArgs+"B's"), 0, script.ClaimWindow)
	x.s.Cmd(t, "DEL", "k")
	x.waits("d", mute.enqueue("d", usualArgs), 0)
	x.held("c")
	x.is("plain release", send(t, mute.n, releaseScript, releaseScript.Command(releaseKeys(x.k),
		text("c"), undoing("0:0:0"))), int64(1))
	e.hears()
}

// Whatever is lost of a queue, somebody gets the lock; and those who come back with their tickets are in order again.
func TestScheduleEvicted(t *testing.T) {
	for name, lose := range map[string]func(x queue){
		"queue":   func(x queue) { x.s.Cmd(t, "DEL", x.k.Queue()) },
		"waiters": func(x queue) { x.s.Cmd(t, "DEL", x.k.Wait()) },
		"lock":    func(x queue) { x.s.Cmd(t, "DEL", x.k.Lock) },
		"counter": func(x queue) { x.s.Cmd(t, "DEL", x.k.Fence()) },
		"all":     func(x queue) { x.s.Cmd(t, "FLUSHALL") },
	} {
		x := newQueue(t)
		a := x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
		tickets := map[string]int64{}
		for i, o := range []string{"b", "c", "d"} {
			tickets[o] = x.waits(o, x.enqueue(o, usualArgs), min(i, 1))
		}
		back := func(o string) []drivers.Reply {
			return x.enqueue(o, "10000:6000:"+fmt.Sprint(tickets[o])+":1:")
		}
		lose(x)
		if name == "lock" || name == "all" {
			// The first that asks is the one, or finds that an earlier one is.
			x.release("a", "10000:0:0")
		}
		x.release("a", "10000:0:"+fmt.Sprint(a))
		for _, o := range []string{"d", "c", "b"} {
			back(o)
		}
		var served []string
		for range 3 {
			_, o := counterOf(t, x.s, "k")
			served = append(served, o)
			if token := x.granted(o, x.claim(o, "10000"), 0, 10*time.Second); token <= a {
				t.Errorf("%s: token %d after %d", name, token, a)
			}
			x.release(o, "10000:0:0")
		}
		x.held("")
		x.waiting()
		if name == "queue" || name == "waiters" || name == "all" {
			if strings.Join(served, "") != "dbc" { // d came first when there was no queue
				t.Errorf("%s: served %q", name, served)
			}
		} else if strings.Join(served, "") != "bcd" {
			t.Errorf("%s: served %q", name, served)
		}
	}
}

// Entries of waiters whose queue is lost do no harm. Such waiters are not served until they come back.
func TestWaitersWithoutAQueue(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	x.enqueue("b", usualArgs)
	x.s.Cmd(t, "DEL", x.k.Queue())
	x.is("release", x.release("a", "0:0:0"), int64(1))
	x.held("")
	x.granted("c", x.enqueue("c", usualArgs), 10*time.Second, 10*time.Second)
	x.waits("b", x.enqueue("b", usualArgs), 0)
	x.waiting("b")
}

// A clock that was stepped back: those that come later are behind, and who has a ticket is where it was.
func TestScheduleClockSteppedBack(t *testing.T) {
	x := newQueue(t)
	x.enqueue("a", usualArgs)
	future := time.Now().Add(time.Hour).UnixMicro()
	x.enqueue("b", usualArgs)
	x.s.Cmd(t, "ZADD", x.k.Queue(), future, "b")
	if ticket := x.waits("c", x.enqueue("c", usualArgs), 1); ticket != future+1 {
		t.Errorf("ticket %d behind %d", ticket, future)
	}
	x.waits("d", x.enqueue("d", "10000:6000:"+fmt.Sprint(future-1)+":1:"), 2) // a ticket from the future is none
	x.waits("e", x.enqueue("e", "10000:6000:5:1:"), 0)
	x.waiting("e", "b", "c", "d")
}
