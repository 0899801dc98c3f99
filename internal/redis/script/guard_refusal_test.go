package script_test

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// Clients with another guard get nothing, whoever comes first, and also after a restart that has kept the marker.
func TestClientsWithAnotherGuard(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	other := g
	other.Guard = guardOf(3 * guarded)
	g.rests("k", rest)
	g.age()
	check := func() {
		t.Helper()
		a := other.acquire("k", "b")
		if a.Status != script.OtherGuard || script.MaxTTLOf(a.Left) != guarded {
			t.Errorf("%+v", a)
		}
		p, err := script.ReadPosition(sendCommand(t, g.n, other.attempt("k", "b").Enqueue(time.Second, 0, 0, "")))
		if err != nil || p.Status != script.OtherGuard || p.Left != rest {
			t.Errorf("%+v, %v", p, err)
		}
		s, left, err := script.ReadTouched(sendCommand(t, g.n, other.Touch()))
		if err != nil || s != script.OtherGuard || left != rest {
			t.Errorf("status %d, %v, %v", s, left, err)
		}
	}
	check()
	g.grants("k")
	g.s.Cmd(t, "SAVE")
	g = g.restarted()
	other.n = g.n
	check()
	g.rests("k", rest)
	sendCommand(t, g.n, other.Trust(0)) // an operator says so
	other.grants("k")
	if a := g.acquire("k", "b"); a.Status != script.OtherGuard {
		t.Errorf("%+v", a)
	}
}

// Without the right to INFO, nothing is granted and nothing is written.
func TestGuardWithoutRights(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.s.User(t, "locker", "on", "nopass", "~*", "+@all", "-info")
	n := reachServer(t, g.s, redis.DialUsername("locker"), redis.DialPassword("any"))
	for _, cmd := range []script.Command{
		g.attempt("k", "a").Acquire(time.Second, 1, 0), g.attempt("k", "a").Enqueue(time.Second, 0, 0, ""),
		g.Touch(), g.Trust(0),
	} {
		reply := sendCommand(t, n, cmd)
		if a, err := script.ReadAcquired(reply); err != nil || a.Status != script.NoGuard {
			t.Errorf("%v: %+v, %v", reply, a, err)
		}
	}
	joined := sendCommand(t, n, script.Join([]*script.Usual{g.attempt("k", "a").Acquire(time.Second, 1, 0).Usual}))
	if joined != int64(0) {
		t.Errorf("joined: %v", joined)
	}
	if keys := g.s.Keys(t, "*"); len(keys) > 0 {
		t.Errorf("the server has %q", keys)
	}
}

// With no memory for the marker, nothing is granted.
func TestGuardOutOfMemory(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.rests("k", rest)
	g.age()
	a := g.attempt("held", "a")
	c := g.acquire("held", "a").Counter
	sendCommand(t, g.n, g.attempt("held", "b").Enqueue(time.Minute, script.MaxPositionTTL, 0, ""))
	g.s.Cmd(t, "DEL", g.marker())
	g.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	for _, cmd := range []script.Command{
		g.attempt("k", "a").Acquire(time.Second, 1, 0), g.attempt("k", "a").Enqueue(time.Second, 0, 0, ""), g.Touch(),
	} {
		if e, ok := sendCommand(t, g.n, cmd).(drivers.ServerError); !ok || e.Code() != "OOM" {
			t.Errorf("%v", e)
		}
	}
	release := script.Release{Attempt: a, Certify: c, Notify: script.NotifyQueue}.Command()
	if o, err := script.ReadOwned(sendCommand(t, g.n, release)); err != nil || o.Status != script.Done || o.Waited {
		t.Errorf("release: %+v, %v", o, err)
	}
	if g.s.Cmd(t, "EXISTS", a.Lock) != int64(0) {
		t.Error("the lock is there")
	}
}

// A replica may not write, and says so in the words that clients know.
func TestGuardOnAReplica(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.rests("k", rest)
	g.age()
	replica := redistest.StartReplica(t, g.s)
	for _, readonly := range []string{"yes", "no"} {
		replica.Cmd(t, "CONFIG", "SET", "replica-read-only", readonly)
		reply := sendCommand(t, reachServer(t, replica), g.attempt("k", "a").Acquire(time.Second, 1, 0))
		e, ok := reply.(drivers.ServerError)
		if !ok || e.Code() != "READONLY" {
			t.Errorf("replica-read-only %s: %v", readonly, e)
		}
	}
}
