package script_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

func TestScheduleOutOfMemory(t *testing.T) {
	x := newQueue(t)
	e := listen(t, x.s, "B's", "C's")
	token := x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	x.enqueue("b", usualArgs+"B's")
	x.enqueue("c", usualArgs+"C's")
	x.enqueue("d", usualArgs)
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	refused := func(what string, k script.Keys, o, args string) {
		t.Helper()
		r := send(t, x.n, enqueueScript, enqueueScript.Command(queueKeys(k), text(o), args))
		if e, ok := r.(drivers.ServerError); !ok || e.Code() != "OOM" {
			t.Errorf("%s answers %v", what, r)
		}
	}
	refused("enqueue of a free lock", script.KeysOf("", "other"), "a", usualArgs)
	refused("enqueue", x.k, "f", usualArgs)
	if got := x.s.Keys(t, "*other*"); len(got) != 0 {
		t.Errorf("what was refused left %q", got)
	}
	x.waiting("b", "c", "d")
	x.is("extend", x.extend("a", token), int64(1|waited))
	x.is("leave", x.leave("d"), int64(4))
	x.is("release", x.release("a", "10000:0:"+fmt.Sprint(token)), int64(1|waited))
	e.hears("B's b")
	b := x.granted("b", x.enqueue("b", usualArgs+"B's"), 0, script.ClaimWindow)
	x.granted("b", x.claim("b", "10000"), 10*time.Second, 10*time.Second)
	x.is("release", x.release("b", "10000:0:"+fmt.Sprint(b)), int64(1|waited))
	e.hears("C's c")
	x.held("c")
	x.is("release with rest", x.release("c", "10000:5000:0"), int64(1))
	x.held("hold:c")
	x.is("release, again", x.release("c", "10000:5000:0"), int64(2))
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	x.is("a late copy", x.enqueue("d", usualArgs), []drivers.Reply{int64(-1)}) // its tombstone could be set
	x.waiting()
}
