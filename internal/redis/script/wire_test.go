package script_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/golden"
	"github.com/golocker/locker/internal/testing/redistest"
)

// wireTest sends commands to a server, and compares the replies, and what the server has afterwards, with a file.
type wireTest struct {
	t    *testing.T
	s    *redistest.Server
	n    *server
	file *golden.File
}

// does sends a command. The section has its reply, and what the server has then.
func (w wireTest) does(title string, cmd script.Command) drivers.Reply {
	w.t.Helper()
	reply := sendCommand(w.t, w.n, cmd)
	w.file.Section(title, "reply: "+shown(reply)+"\n"+golden.Normal(w.s.Dump(w.t)))
	return reply
}

// shown returns a reply without what differs from run to run: counters, and times that are left.
func shown(reply drivers.Reply) string {
	switch r := reply.(type) {
	case int64:
		switch {
		case r >= 1_000_000_000:
			return fmt.Sprintf("<%d digits>", len(fmt.Sprint(r)))
		case r > 128: // tokens are at most as many, and codes are smaller
			return "<ms>"
		}
		return fmt.Sprint(r)
	case []drivers.Reply:
		var parts []string
		for _, each := range r {
			parts = append(parts, shown(each))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		return fmt.Sprintf("%q", golden.Normal(fmt.Sprint(r)))
	}
}

// What is on a server is read by programs with other versions of this library: during a rolling upgrade, there are two.
// The replies of scripts are only for the program that has sent the script.
func TestWire(t *testing.T) {
	t.Parallel()
	s, n := real(t)
	w := wireTest{t, s, n, golden.Open(t, "wire.txt", "Programs with other releases of this library read what is on "+
		"the server: VERSIONING.md says what may change, and the trial upgrade tries it.")}
	const ttl, waits, tomb = 30 * time.Second, 5 * time.Second, time.Minute
	keys := script.KeysOf("lock:", "k")
	as := func(token string) script.Attempt {
		return script.Attempt{Keys: keys, Token: token, Node: 1, Label: "web-7"}
	}
	counter := func() uint64 {
		c, _ := counterOf(t, s, keys.Lock)
		return c
	}
	a, b, c, d := as("a"), as("b"), as("c"), as("d")

	w.does("acquire", a.Acquire(ttl, 1, 0))
	w.does("acquire what another owner has", b.Acquire(ttl, 1, 0))
	w.does("extend", a.Extend(ttl, counter()))
	w.does("verify", a.Verify(counter()))
	w.does("wait, without a channel", b.Enqueue(ttl, waits, 0, ""))
	w.does("wait, with a channel", c.Enqueue(ttl, waits, 0, script.Inbox("lock:", "client")))
	w.does("extend while others wait", a.Extend(ttl, counter()))
	w.does("inspect", keys.Inspect())
	w.does("release to the first waiter", script.Release{Attempt: a, Notify: script.NotifyQueue}.Command())
	w.does("claim several tokens", script.Attempt{Keys: keys, Token: "b", Node: 1, Fences: 128}.Claim(ttl))

	conn, err := redis.Dial("tcp", s.Addr(), redis.DialReadTimeout(timeout))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	inbox := redis.PubSubConn{Conn: conn}
	if err := inbox.Subscribe(script.Inbox("lock:", "client")); err != nil {
		t.Fatal(err)
	}
	inbox.Receive() // that it is subscribed
	w.does("take by force, for a waiter with a channel",
		keys.Force(s.Cmd(t, "GET", keys.Lock).(string), tomb, false, nil))
	switch m := inbox.Receive().(type) {
	case redis.Message:
		w.file.Section("what the waiter is told", fmt.Sprintf("%s: %s", m.Channel, m.Data))
	default:
		t.Errorf("the waiter was told %v", m)
	}
	w.does("export", script.Release{Attempt: c, Certify: counter()}.Export(".text", ttl))
	w.does("resume", d.Resume(".text", ttl))
	c.Token = "d"
	w.does("release, and keep the lock", script.Release{Attempt: c, Keep: ttl, Notify: script.NotifyQueue}.Command())
	s.Cmd(t, "FLUSHALL")

	w.does("undo what was not executed", script.Release{Attempt: d, Tombstone: tomb, Notify: script.NotifyQueue}.Command())
	w.does("execute it late", d.Acquire(ttl, 1, 0))
	w.does("acquire beside a tombstone", a.Acquire(ttl, 1, 0))
	w.does("undo what was executed", script.Release{Attempt: a, Tombstone: tomb, Notify: script.NotifyQueue}.Command())
	w.does("undo it again", script.Release{Attempt: a, Tombstone: tomb, Notify: script.NotifyQueue}.Command())
	s.Cmd(t, "FLUSHALL")

	usual := b.Acquire(ttl, 1, 0).Usual
	w.does("a joined acquisition", script.Join([]*script.Usual{usual}))
	w.does("a joined release", script.Join([]*script.Usual{script.Release{Attempt: b}.Command().Usual}))
	two := script.Attempt{Keys: script.KeysOf("lock:", "l"), Token: "b", Node: 1}
	gate := script.KeysOf("lock:", "gate")
	w.does("one of two locks", script.Step{Attempts: []script.Attempt{a, two}, Want: 1, Gates: []script.Keys{gate},
		TTL: ttl}.Command())
	w.does("both of two locks, of which one is taken", script.Step{Attempts: []script.Attempt{b, two}, Want: 2,
		TTL: ttl}.Command())
	w.does("raise the counter of the slot", script.RaiseCounter("lock:", script.Slot(keys.Lock), counter()+1000))
	s.Cmd(t, "FLUSHALL")

	a.Node, b.Node = 3, 2
	w.does("Redlock: acquire", a.Acquire(ttl, 1000, 0))
	second := a
	second.Node = 2
	w.does("Redlock: acquire as another node of the same owner", second.Acquire(ttl, 1000, 0))
	w.does("Redlock: raise the token", a.Raise(counter()+1000))
	w.does("Redlock: wait for the turn", keys.Ask("b", waits, 0, ""))
	w.does("Redlock: count those who wait", keys.Count(""))
	w.does("Redlock: release", script.Release{Attempt: a, Notify: script.NotifyTurn}.Command())
	w.does("Redlock: the turn", keys.Ask("b", waits, 0, ""))
	w.does("Redlock: leave", script.Release{Attempt: b, Notify: script.NotifyTurn, Turn: "b", Leaves: true}.Command())
	s.Cmd(t, "FLUSHALL")

	guard := script.NewGuard("lock:", ttl, func() bool { return false })
	a = as("a")
	a.Guard = guard
	w.does("restart guard: acquire from a new server", a.Acquire(ttl, 1, 0))
	w.does("restart guard: trust the server", guard.Trust(0))
	w.does("restart guard: acquire", a.Acquire(ttl, 1, 0))
	s.Cmd(t, "FLUSHALL")

	some := func(token string, weight int) script.Attempt {
		a := as(token)
		a.Keys, a.Wants = script.KeysOf("lock:", "{k}#permits"), &script.Wants{N: 3, Weight: weight}
		return a
	}
	returned := script.Release{Attempt: some("a", 2), Notify: script.NotifyQueue}
	w.does("a group: two of three permits", some("a", 2).Enqueue(ttl, waits, 0, ""))
	w.does("a group: wait", some("b", 2).Enqueue(ttl, waits, 0, script.Inbox("lock:", "client")))
	w.does("a group: inspect", some("a", 2).InspectGroup("", 10))
	w.does("a group: return to the first waiter", returned.Command())
	w.does("a group: claim", some("b", 2).Claim(ttl))
	returned.Attempt, returned.Keep = some("b", 2), ttl
	w.does("a group: return, and keep the permits", returned.Command())
	s.Cmd(t, "FLUSHALL")

	s.Cmd(t, "RPUSH", keys.Lock, "x")
	w.does("acquire what is no lock", as("a").Acquire(ttl, 1, 0))
}

// The names of what belongs to a lock.
func TestNames(t *testing.T) {
	file := golden.Open(t, "names.txt", "Programs with other releases of this library use these names: VERSIONING.md "+
		"says what may change.")
	for _, key := range []string{"orders:42", "a{b}c", "a{}b", "a}b", "{a", "ключ"} {
		k := script.KeysOf("lock:", key)
		slot := script.Slot(k.Lock)
		file.Section(key, strings.Join([]string{
			"lock      " + k.Lock,
			"counter   " + k.Fence(),
			"waiters   " + k.Wait(),
			"queue     " + k.Queue(),
			"turn      " + k.Turn(),
			"entries   " + k.Entries(),
			"channel   " + script.Inbox("lock:", "client"),
			"of a slot " + script.ShardedInbox("lock:", "client", slot),
			"guard     " + script.NewGuard("lock:", time.Second, func() bool { return false }).Touch().Words[3],
			"of a slot " + script.NewGuard("lock:", time.Second, func() bool { return true }).Trust(slot).Words[3],
		}, "\n"))
	}
}
