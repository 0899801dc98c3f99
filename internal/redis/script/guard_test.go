package script_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

const (
	guarded = 10 * time.Second
	rest    = guarded + guarded/50 + 2*time.Second
)

// guard is a real server and the guard of its clients.
type guard struct {
	t *testing.T
	s *redistest.Server
	n *server
	*script.Guard
}

func newGuard(t *testing.T, args ...string) guard {
	s, n := real(t, args...)
	return guard{t, s, n, guardOf(guarded)}
}

func guardOf(maxTTL time.Duration) *script.Guard {
	return script.NewGuard("p:", maxTTL, func() bool { return false })
}

func (g guard) attempt(key, token string) script.Attempt {
	return script.Attempt{Keys: script.KeysOf("p:", key), Token: token, Node: 1, Guard: g.Guard}
}

// marker returns the key of the marker.
func (g guard) marker() string { return g.Touch().Words[3] }

// age makes the rest end: the marker is as old as it can be.
func (g guard) age() {
	g.t.Helper()
	value, _ := g.s.Cmd(g.t, "GET", g.marker()).(string)
	p := strings.Split(value, ":")
	if len(p) != 3 {
		g.t.Fatalf("the marker is %q", value)
	}
	g.s.Cmd(g.t, "SET", g.marker(), p[0]+":1:"+p[2])
}

// acquire returns what an attempt to acquire is answered, by itself, in the queue and as a joined command.
func (g guard) acquire(key, token string) script.Acquired {
	g.t.Helper()
	a, err := script.ReadAcquired(sendCommand(g.t, g.n, g.attempt(key, token).Acquire(time.Second, 1, 0)))
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

// rests checks that no way to acquire the lock of key, which is free, grants it, and that the node rests for d.
func (g guard) rests(key string, d time.Duration) {
	g.t.Helper()
	a := g.attempt(key, "rests")
	about := func(what string, s script.Status, left time.Duration) {
		g.t.Helper()
		if s != script.Resting || left > d || left < d-2*time.Second {
			g.t.Errorf("%s: status %d, %v left, want %d, %v", what, s, left, script.Resting, d)
		}
	}
	alone := g.acquire(key, "rests")
	about("acquire", alone.Status, alone.Left)
	joined := sendCommand(g.t, g.n, script.Join([]*script.Usual{a.Acquire(time.Second, 1, 0).Usual}))
	if joined != int64(0) {
		g.t.Errorf("joined: %v", joined)
	}
	p, err := script.ReadPosition(sendCommand(g.t, g.n, a.Enqueue(time.Second, script.MaxPositionTTL, 0, "")))
	if err != nil {
		g.t.Fatal(err)
	}
	about("enqueue", p.Status, p.Left)
	for _, name := range []string{a.Lock, a.Fence(), a.Wait(), a.Queue()} {
		if g.s.Cmd(g.t, "EXISTS", name) != int64(0) {
			g.t.Errorf("%s is there", name)
		}
	}
}

// grants checks that every way to acquire grants.
func (g guard) grants(key string) {
	g.t.Helper()
	one, two, three := g.attempt(key+"1", "a"), g.attempt(key+"2", "a"), g.attempt(key+"3", "a")
	if a := g.acquire(key+"1", "a"); a.Status != script.Granted {
		g.t.Errorf("acquire: %+v", a)
	}
	joined := sendCommand(g.t, g.n, script.Join([]*script.Usual{two.Acquire(time.Second, 1, 0).Usual}))
	if c, _ := joined.(int64); c < 2 {
		g.t.Errorf("joined: %v", joined)
	}
	p, err := script.ReadPosition(sendCommand(g.t, g.n, three.Enqueue(time.Second, 0, 0, "")))
	if err != nil || p.Status != script.Granted {
		g.t.Errorf("enqueue: %+v, %v", p, err)
	}
	g.s.Cmd(g.t, "DEL", one.Lock, two.Lock, three.Lock)
}

// restarted is g after the server was killed and started again.
func (g guard) restarted() guard {
	g.s.Kill()
	g.s.Restart()
	g.n = reachServer(g.t, g.s)
	return g
}

// What makes a server rest, and what does not.
func TestServerThatMayHaveForgottenRests(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(g guard) guard{
		"restart without data": func(g guard) guard { return g.restarted() },
		"restart with all data": func(g guard) guard {
			g.s.Cmd(g.t, "SAVE")
			return g.restarted()
		},
		"FLUSHALL":        func(g guard) guard { g.s.Cmd(g.t, "FLUSHALL"); return g },
		"marker is gone":  func(g guard) guard { g.s.Cmd(g.t, "DEL", g.marker()); return g },
		"marker is other": func(g guard) guard { g.s.Cmd(g.t, "SET", g.marker(), "theirs"); return g },
		"marker is other, with colons": func(g guard) guard {
			g.s.Cmd(g.t, "SET", g.marker(), "theirs:1:too")
			return g
		},
		"marker without a time": func(g guard) guard {
			value, _ := g.s.Cmd(g.t, "GET", g.marker()).(string)
			p := strings.Split(value, ":")
			g.s.Cmd(g.t, "SET", g.marker(), p[0]+":nan:"+p[2])
			return g
		},
		"clock set back": func(g guard) guard { // which is the same as a marker of the future
			value, _ := g.s.Cmd(g.t, "GET", g.marker()).(string)
			p := strings.Split(value, ":")
			g.s.Cmd(g.t, "SET", g.marker(), fmt.Sprintf("%s:%d:%s", p[0], time.Now().Add(time.Hour).UnixMicro(), p[2]))
			return g
		},
		"promotion": func(g guard) guard {
			replica := redistest.StartReplica(g.t, g.s)
			caughtUp(g.t, g.s, replica)
			replica.Cmd(g.t, "REPLICAOF", "NO", "ONE")
			return guard{g.t, replica, reachServer(g.t, replica), g.Guard}
		},
		"promotion and back": func(g guard) guard { // nobody has asked the other one meanwhile
			g.s.Cmd(g.t, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
			other := redistest.StartReplica(g.t, g.s)
			caughtUp(g.t, g.s, other)
			g.age()
			if g.acquire("before", "a").Status == script.Resting { // the first replica is a new history
				g.age()
			}
			caughtUp(g.t, g.s, other)
			g.grants("before")
			other.Cmd(g.t, "REPLICAOF", "NO", "ONE")
			g.s.Follow(g.t, other)
			caughtUp(g.t, other, g.s)
			g.s.Cmd(g.t, "REPLICAOF", "NO", "ONE")
			return g
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuard(t)
			g.rests("k", rest)
			g.age()
			g.grants("k")
			g = forget(g)
			g.rests("k", rest)
			g.age()
			g.grants("k")
		})
	}
}

func reachServer(t *testing.T, s *redistest.Server, options ...redis.DialOption) *server {
	return reach(t, s, func() (redis.Conn, error) { return redis.Dial("tcp", s.Addr(), options...) })
}

// caughtUp waits until the replica has all that the master has.
func caughtUp(t *testing.T, master, replica *redistest.Server) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		if acks, err := master.Do("WAIT", 1, 100); err == nil && acks == int64(1) && !replica.IsMaster() {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the replica does not follow")
		}
	}
}

// DEBUG RELOAD loses nothing: the process saves its data and reads them again.
func TestReloadIsNoReasonToRest(t *testing.T) {
	t.Parallel()
	var allow []string
	if !strings.HasPrefix(redistest.Version(redistest.Binary(t)), "Redis server 6") { // which allows it to all
		allow = []string{"--enable-debug-command", "yes"}
	}
	g := newGuard(t, allow...)
	g.rests("k", rest)
	g.age()
	g.s.Cmd(t, "DEBUG", "RELOAD")
	g.grants("k")
}

// A lock that was granted before stays what it was, for its owner and for others.
func TestServerThatRestsKeepsItsLocks(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.rests("k", rest)
	g.age()
	c := g.acquire("k", "a").Counter
	g.s.Cmd(t, "DEL", g.marker())
	g.rests("free", rest)
	if again := g.acquire("k", "a"); again.Status != script.Granted || again.Counter != c {
		t.Errorf("its owner again: %+v", again)
	}
	if other := g.acquire("k", "b"); other.Status != script.Waiting {
		t.Errorf("another: %+v", other)
	}
	a := g.attempt("k", "a")
	for what, cmd := range map[string]script.Command{"raise": a.Raise(c), "extend": a.Extend(time.Minute, c)} {
		if o, err := script.ReadOwned(sendCommand(t, g.n, cmd)); err != nil || o.Status != script.Done {
			t.Errorf("%s: %+v, %v", what, o, err)
		}
	}
	release := script.Release{Attempt: a, Certify: c, Notify: script.NotifyQueue}.Command()
	if o, err := script.ReadOwned(sendCommand(t, g.n, release)); err != nil || o.Status != script.Done {
		t.Errorf("release: %+v, %v", o, err)
	}
	if a := g.acquire("k", "c"); a.Status != script.Resting {
		t.Errorf("after its release: %+v", a)
	}
}
