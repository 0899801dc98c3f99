package script_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// Programs without the queue keep exclusion, and the queue goes on after them.
func TestPlainAndQueuedExcludeEachOther(t *testing.T) {
	x := newQueue(t)
	x.granted("a", x.enqueue("a", usualArgs), 0, 10*time.Second)
	if v := acquired(t, send(t, x.n, acquireScript, acquireCommand("p", 1, 0))); v.Status != script.Waiting {
		t.Errorf("the plain script answers %v", v)
	}
	x.enqueue("b", usualArgs)
	x.is("plain release", send(t, x.n, releaseScript, releaseCommand("a", true)), int64(1))
	v := acquired(t, send(t, x.n, acquireScript, acquireCommand("p", 1, 0)))
	if v.Status != script.Granted {
		t.Fatal(v)
	}
	x.waits("b", x.enqueue("b", usualArgs), 0)
	x.is("plain release", send(t, x.n, releaseScript, releaseCommand("p", true)), int64(1))
	if token := x.granted("b", x.enqueue("b", usualArgs), 0, 10*time.Second); token <= int64(v.Counter) {
		t.Errorf("token %d after %d", token, v.Counter)
	}
}

func TestPlainReleaseRests(t *testing.T) {
	x := newQueue(t)
	release := func(o, args string) drivers.Reply {
		t.Helper()
		return send(t, x.n, releaseScript, releaseScript.Command(releaseKeys(x.k), text(o), undoing(args)))
	}
	token := acquire(t, x.n, "a", 10*time.Second)
	x.is("another's release", release("b", "0:0:0"), int64(4))
	x.is("release", release("a", "10000:0:"+fmt.Sprint(token)), int64(1))
	x.is("release, again", release("a", "10000:0:0"), int64(2))
	acquire(t, x.n, "b", 10*time.Second)
	x.is("release after a newer token", release("b", "0:0:"+fmt.Sprint(token)), int64(3))
	acquire(t, x.n, "c", 10*time.Second)
	x.is("a clean-up", release("c", "10000:0:0"), int64(1))
	acquire(t, x.n, "d", 10*time.Second)
	x.is("release with rest", release("d", "10000:5000:0"), int64(1))
	x.is("again", release("d", "10000:9000:0"), int64(2))
	x.held("hold:d")
	if left := x.s.PTTL(t, "k"); left > 5*time.Second {
		t.Errorf("it rests for %v", left)
	}
}
