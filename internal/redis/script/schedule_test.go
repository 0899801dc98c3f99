package script_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// nodes are three nodes as far as the scripts can tell: three locks with their counters on one server. The clock has no
// part in their counters, so that schedules can be written down.
type nodes struct {
	t *testing.T
	n *server
	s *redistest.Server
}

func (x nodes) keys(node string) script.Keys { return script.KeysOf("", "lock on "+node) }

// counters sets the fencing counters of nodes 1, 2 and 3.
func (x nodes) counters(values ...int) {
	for i, v := range values {
		x.s.Cmd(x.t, "SET", x.keys(string(rune('1'+i))).Fence(), v)
	}
}

func (x nodes) expire(node string) { x.s.Cmd(x.t, "DEL", x.keys(node).Lock) }

// step executes one script: "A acquires 2", "B raises 2 to 5", "A releases 1".
func (x nodes) step(what string) drivers.Reply {
	x.t.Helper()
	const never = "9007199254740991" // µs: later than any clock
	words := strings.Fields(what)
	owner, k := words[0], x.keys(words[2])
	switch words[1] {
	case "acquires":
		return send(x.t, x.n, acquireScript, acquireScript.Command(
			acquireKeys(k), text(owner), "60000", never, "0"))
	case "raises":
		return send(x.t, x.n, raiseScript, raiseScript.Command(ownedKeys(k), text(owner), fmt.Sprintf("%016s", words[4])))
	case "releases":
		return send(x.t, x.n, releaseScript, releaseScript.Command(
			releaseKeys(k), text(owner), undoing("0:0:0")))
	}
	x.t.Fatalf("no such step: %s", what)
	return nil
}

func (x nodes) want(what string, want drivers.Reply) {
	x.t.Helper()
	if got := x.step(what); !reflect.DeepEqual(got, want) {
		x.t.Errorf("%s: the node answers %v, want %v", what, got, want)
	}
}

func grantOf(counter int64) drivers.Reply { return counter }

const (
	accepted = int64(1)
	no       = int64(0)
)

// The two schedules that model checking found against an earlier draft, in which a node let anybody raise its counter
// (docs/safety.md, model/). Random simulation does not find them.

func TestScheduleTokenIssuedTwice(t *testing.T) {
	s, n := real(t)
	x := nodes{t, n, s}
	x.counters(1, 0, 0)
	x.want("A acquires 2", grantOf(1))
	x.want("B acquires 1", grantOf(2))
	x.want("B acquires 3", grantOf(1)) // B has {1, 3} and chooses 2
	// The draft accepted this, and B owned token 2 by nodes 1 and 2.
	x.want("B raises 2 to 2", no)
	// A's acquisition is delivered again. In the draft it answered 2: the counter, whoever put it there.
	x.want("A acquires 2", grantOf(1))
	x.expire("3")
	x.want("A acquires 3", grantOf(2)) // in the draft, A had {2, 2}: token 2 a second time
	x.want("B raises 3 to 2", no)      // what B should have asked for; too late
	x.want("A raises 2 to 2", accepted)
	x.want("B raises 2 to 2", no)
}

func TestScheduleNextHolderGetsSmallerToken(t *testing.T) {
	s, n := real(t)
	x := nodes{t, n, s}
	x.counters(2, 1, 0) // after failed attempts
	x.want("A acquires 1", grantOf(3))
	x.want("A acquires 3", grantOf(1)) // A has {1, 3} and chooses 3
	x.want("B acquires 2", grantOf(2))
	// The draft accepted this, and A owned token 3 by nodes 1 and 2.
	x.want("A raises 2 to 3", no)
	x.want("A raises 3 to 3", accepted) // A owns 3 by nodes 1 and 3
	x.want("A releases 1", int64(1))
	x.want("A releases 3", int64(1))
	// In the draft B got {2, 2} now: the next rightful holder with a token smaller than 3.
	x.want("B acquires 3", grantOf(4))
	x.want("B raises 2 to 4", accepted)
}
