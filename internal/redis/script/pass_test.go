package script_test

import (
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

const theText = ".text" // the owner value of a text

// exports passes the lock of o on.
func (x queue) exports(o string, token int64, ttl, tomb time.Duration) drivers.Reply {
	x.t.Helper()
	*x.asked = time.Now()
	keys := []string{x.k.Lock}
	if tomb > 0 {
		keys = append(keys, x.k.Wait())
	}
	return send(x.t, x.n, exportScript, exportScript.Command(keys, text(o), text(theText),
		script.CounterText(uint64(token)), script.Milliseconds(ttl)+":"+script.Milliseconds(tomb)))
}

// resumes makes an attempt of o to take over the lock that was passed on.
func (x queue) resumes(o string, ttl time.Duration) drivers.Reply {
	x.t.Helper()
	*x.asked = time.Now()
	return send(x.t, x.n, resumeScript, resumeScript.Command(ownedKeys(x.k), text(o), text(theText),
		script.Milliseconds(ttl)))
}

// resumed is resumes by an attempt that is granted the lock, and returns the token.
func (x queue) resumed(o string, ttl time.Duration) int64 {
	x.t.Helper()
	c, ok := x.resumes(o, ttl).(int64)
	if !ok || c <= 0 {
		x.t.Fatalf("%s is answered %v", o, c)
	}
	owner, _, _ := strings.Cut(o, "|")
	x.granted(owner, []drivers.Reply{int64(1), c, x.s.PTTL(x.t, x.k.Lock).Milliseconds()}, ttl-5*time.Second, ttl)
	return c
}

func TestExportScript(t *testing.T) {
	x := newQueue(t)
	const token = 7
	of := func(counter uint64, o string) string { return script.CounterText(counter) + text(o) }
	for _, tt := range []struct {
		what string
		set  []any // after DEL
		want int64
		then string // the value
	}{
		{"free", nil, 0, ""},
		{"mine", []any{"SET", "k", of(token, "a||label"), "PX", 60000}, 1, of(token, theText+"||label")},
		{"mine, and somebody waits", []any{"SET", "k", of(token, "a||label") + "+", "PX", 60000}, 1,
			of(token, theText+"||label") + "+"},
		{"mine, with the first of several tokens", []any{"SET", "k", of(token-3, "a"), "PX", 60000}, 1, of(token, theText)},
		{"mine, granted once more", []any{"SET", "k", of(token+1, "a"), "PX", 60000}, 3, of(token+1, "a")},
		{"exported", []any{"SET", "k", of(token, theText+"||label") + "+", "PX", 60000}, 1,
			of(token, theText+"||label") + "+"},
		{"mine as another node", []any{"SET", "k", of(token, "a|2"), "PX", 60000}, 4, of(token, "a|2")},
		{"kept", []any{"SET", "k", "hold:a", "PX", 60000}, 0, "hold:a"},
		{"somebody else's", []any{"SET", "k", of(token, "b"), "PX", 60000}, 4, of(token, "b")},
		{"another library's", []any{"SET", "k", "a", "PX", 60000}, 4, "a"},
		{"not a string", []any{"RPUSH", "k", "a"}, 4, ""},
	} {
		x.s.Cmd(t, "DEL", "k")
		if tt.set != nil {
			x.s.Cmd(t, tt.set...)
		}
		x.is(tt.what, x.exports("a", token, 30*time.Second, 0), tt.want)
		if tt.set != nil && tt.set[0] == "SET" {
			x.value(tt.then)
			left := time.Minute
			if tt.want == 1 && tt.what != "exported" {
				left = 30 * time.Second // also if it was longer
			}
			x.lives("k", left)
		}
		if x.s.Cmd(t, "EXISTS", x.k.Wait(), x.k.Fence()) != int64(0) {
			t.Errorf("%s: it has written something else", tt.what)
		}
	}
}

func TestResumeScript(t *testing.T) {
	x := newQueue(t)
	const counter = 7
	of := func(o string) string { return script.CounterText(counter) + text(o) }
	for _, tt := range []struct {
		what string
		set  []any // after DEL
		want int64 // 1: granted
	}{
		{"free", nil, 0},
		{"exported", []any{"SET", "k", of(theText + "||old"), "PX", 60000}, 1},
		{"exported, and somebody waits", []any{"SET", "k", of(theText+"||old") + "+", "PX", 60000}, 1},
		{"the exporter's", []any{"SET", "k", of("a"), "PX", 60000}, -1},
		{"somebody else's", []any{"SET", "k", of("b") + "+", "PX", 60000}, -1},
		{"of another node", []any{"SET", "k", of(theText + "|2"), "PX", 60000}, -1},
		{"another library's", []any{"SET", "k", theText, "PX", 60000}, -1},
		{"kept", []any{"SET", "k", "hold:" + theText, "PX", 60000}, 0},
		{"not a string", []any{"RPUSH", "k", theText}, -1},
	} {
		x.s.Cmd(t, "DEL", "k", x.k.Fence())
		if tt.set != nil {
			x.s.Cmd(t, tt.set...)
		}
		reply := x.resumes("b2||new", 30*time.Second)
		c, _ := reply.(int64)
		switch {
		case tt.want == 1 && c > counter:
			mark := ""
			if strings.HasSuffix(tt.set[2].(string), "+") {
				mark = "+"
			}
			x.value(script.CounterText(uint64(c)) + text("b2||new") + mark)
			x.lives("k", 30*time.Second)
		case tt.want == 1 || reply != tt.want:
			t.Errorf("%s: got %v, want %d", tt.what, reply, tt.want)
		case tt.set != nil && tt.set[0] == "SET":
			x.value(tt.set[2].(string))
			x.lives("k", time.Minute)
		}
		if written := x.s.Cmd(t, "EXISTS", x.k.Fence()) == int64(1); written != (tt.want == 1) {
			t.Errorf("%s: the counter of the slot was written: %v", tt.what, written)
		}
	}
}

// Requests that come late, and twice, change nothing. The TTL is that of the first.
func TestSchedulePassedOnTwice(t *testing.T) {
	x := newQueue(t)
	a := x.enqueue("a", usualArgs)[1].(int64)
	x.is("export", x.exports("a", a, 20*time.Second, 0), int64(1))
	x.is("export again", x.exports("a", a, time.Hour, 0), int64(1))
	x.lives("k", 20*time.Second)
	x.is("extend", x.extend("a", a), int64(4))
	x.is("release", x.release("a", "0:0:0"), int64(4))
	x.is("Verify", send(t, x.n, verifyScript, verifyScript.Command(releaseKeys(x.k),
		script.CounterText(uint64(a))+text("a"))), int64(4))

	b := x.resumed("b", 40*time.Second)
	if b <= a {
		t.Errorf("the token %d comes after %d", b, a)
	}
	if again := x.resumes("b", time.Hour); again != b {
		t.Errorf("the second delivery is answered %v, the first %d", again, b)
	}
	x.lives("k", 40*time.Second)
	x.is("resume by another", x.resumes("c", time.Minute), int64(-1))
	x.is("export that comes late", x.exports("a", a, time.Hour, 0), int64(4))
	x.is("release of the text", x.release(theText, "0:0:0"), int64(4))
	x.lives("k", 40*time.Second)
	x.is("extend by the new owner", x.extend("b", b), int64(1))
	x.is("release by the new owner", x.release("b", "0:0:0"), int64(1))
	x.is("resume that comes late", x.resumes("b", time.Minute), int64(0))
	x.is("export that comes late", x.exports("a", a, time.Hour, 0), int64(0))
	d := x.granted("d", x.enqueue("d", usualArgs), 10*time.Second, 10*time.Second)
	x.is("export that comes late", x.exports("a", a, time.Hour, 0), int64(4))
	x.is("resume that comes late", x.resumes("c", time.Minute), int64(-1))
	if d <= b {
		t.Errorf("the token %d comes after %d", d, b)
	}
	x.held("d")
}

// The new token is greater than the last one, also if the counter of the slot was lost and the clock is behind.
func TestResumedTokensGrow(t *testing.T) {
	x := newQueue(t)
	last := time.Now().Add(30 * time.Minute).UnixMicro()
	put(t, x.s, "a", uint64(last))
	x.is("export", x.exports("a", last+5, 20*time.Second, 0), int64(1)) // it has had several
	if b := x.resumed("b", 20*time.Second); b != last+6 {
		t.Errorf("got %d after %d", b, last+5)
	}
	x.s.Cmd(t, "SET", x.k.Fence(), script.CounterText(uint64(last+100)))
	x.is("export", x.exports("b", last+6, 20*time.Second, 0), int64(1))
	if c := x.resumed("c", 20*time.Second); c != last+101 {
		t.Errorf("got %d, and the counter was at %d", c, last+100)
	}
}

// Those that wait stay in the queue, and come when the new owner releases the lock, although none of them has looked
// since.
func TestSchedulePassedOnWhileOthersWait(t *testing.T) {
	x := newQueue(t)
	a := x.enqueue("a", usualArgs)[1].(int64)
	x.waits("first", x.enqueue("first", usualArgs), 0)
	x.waits("second", x.enqueue("second", usualArgs), 1)
	x.is("export", x.exports("a", a, 20*time.Second, 0), int64(1))
	b := x.resumed("b", 20*time.Second)
	x.waiting("first", "second")
	x.is("extend", x.extend("b", b), int64(1+waited))
	x.is("release", x.release("b", "0:0:0"), int64(1+waited))
	x.held("first")
	x.waiting("second")
}

// An attempt to resume is undone by two releases, the text first. Whatever has been executed by then, nobody has the
// lock afterwards but those that wait.
func TestScheduleResumeIsUndone(t *testing.T) {
	for _, when := range []string{"before", "between", "after"} {
		x := newQueue(t)
		a := x.enqueue("a", usualArgs)[1].(int64)
		x.is("export", x.exports("a", a, 20*time.Second, 0), int64(1))
		if when == "before" {
			x.resumed("b", time.Minute)
		}
		x.waits("next", x.enqueue("next", usualArgs), 0)
		x.release(theText, "0:0:0")
		if when == "between" {
			x.is("resume", x.resumes("b", time.Minute), int64(-1))
		}
		x.release("b", "0:0:0")
		x.held("next")
		if when == "after" {
			x.is("resume", x.resumes("b", time.Minute), int64(-1))
		}
		x.is("release", x.release("next", "0:0:0"), int64(1))
		x.is("resume by another", x.resumes("c", time.Minute), int64(0))
		if left := x.s.Left(t); len(left) > 0 {
			t.Errorf("%s: %q are left", when, left)
		}
	}
}

// A request of the exporter for the lock that is executed late neither takes it nor waits for it.
func TestScheduleExporterAsksLate(t *testing.T) {
	x := newQueue(t)
	a := x.enqueue("a", usualArgs)[1].(int64)
	x.is("export", x.exports("a", a, 20*time.Second, time.Minute), int64(1))
	gone := func(what string) {
		t.Helper()
		x.is(what, x.enqueue("a", usualArgs)[0], int64(-1))
		x.waiting()
	}
	gone("while the lock is taken")
	b := x.resumed("b", 20*time.Second)
	gone("while it is taken again")
	x.is("release", x.release("b", "0:0:0"), int64(1))
	gone("while it is free")
	x.exhume("a")
	c := x.enqueue("a", usualArgs)[1].(int64) // later than the tombstone lives, the lock had ended, and it has it again
	x.is("export with the old token", x.exports("a", a, 20*time.Second, time.Minute), int64(3))
	if c <= b {
		t.Errorf("the token %d comes after %d", c, b)
	}
	x.held("a")
	x.lives("k", 10*time.Second)
}

// What is refused because memory is full leaves the lock as it was.
func TestPassingOnOutOfMemory(t *testing.T) {
	x := newQueue(t)
	a := x.enqueue("a", usualArgs)[1].(int64)
	full := func(what string, f func() drivers.Reply) {
		t.Helper()
		before := x.s.Cmd(t, "GET", "k").(string)
		x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
		if r := f(); !isRefusal(r, "OOM") {
			t.Errorf("%s: %v", what, r)
		}
		x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
		x.value(before)
	}
	full("export", func() drivers.Reply { return x.exports("a", a, 20*time.Second, 0) })
	x.is("export", x.exports("a", a, 20*time.Second, 0), int64(1))
	full("resume", func() drivers.Reply { return x.resumes("b", 20*time.Second) })
	b := x.resumed("b", 20*time.Second)
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	if again := x.resumes("b", 20*time.Second); again != b {
		t.Errorf("resumed before, and answered %v", again)
	}
	x.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
}

// A server that rests lets nobody resume a lock, not even one who was granted it before: its data may be old. The text
// is not used up by that. To pass a lock on, it need not have rested.
func TestServerThatRestsResumesNothing(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.rests("k", rest)
	g.age()
	a := g.attempt("k", "a")
	c := g.acquire("k", "a").Counter
	g.s.Cmd(t, "DEL", g.marker())
	export := script.Release{Attempt: a, Certify: c}.Export(theText, time.Minute)
	if o, err := script.ReadOwned(sendCommand(t, g.n, export)); err != nil || o.Status != script.Done {
		t.Errorf("export: %+v, %v", o, err)
	}
	resumes := func(token string, want script.Status) uint64 {
		t.Helper()
		a, err := script.ReadResumed(sendCommand(t, g.n, g.attempt("k", token).Resume(theText, time.Minute)))
		if err != nil || a.Status != want {
			t.Errorf("%s: %+v, %v", token, a, err)
		}
		return a.Counter
	}
	resumes("b", script.Resting)
	g.age()
	b := resumes("b", script.Granted)
	if b <= c {
		t.Errorf("the token %d comes after %d", b, c)
	}
	g.s.Cmd(t, "DEL", g.marker())
	resumes("b", script.Resting)
	resumes("c", script.TakenOver)
	g.age()
	if again := resumes("b", script.Granted); again != b {
		t.Errorf("answered %d and %d", b, again)
	}
}
