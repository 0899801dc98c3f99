package script_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/simnode"
)

func TestGuardOfManyTTLs(t *testing.T) {
	for _, ms := range []int64{10, 11, 49, 50, 51, 99, 1000, 10_001, 30_000, 86_400_000} {
		ttl := time.Duration(ms) * time.Millisecond
		words := guardOf(ttl).Touch().Words
		n, _ := strconv.ParseInt(words[len(words)-1], 10, 64)
		if want := ms + (ms+49)/50 + 2000; n != want || script.MaxTTLOf(time.Duration(n)*time.Millisecond) != ttl {
			t.Errorf("%v: a rest of %d ms, want %d, for TTLs of %v", ttl, n, want,
				script.MaxTTLOf(time.Duration(n)*time.Millisecond))
		}
	}
}

// A server that keeps slots apart has a marker for each. What happens to one is nothing to the others.
func TestSlotsRestByThemselves(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.Guard = script.NewGuard("p:", guarded, func() bool { return true })
	one, two := g.attempt("{x}1", "a"), g.attempt("{y}1", "a")
	g.rests("{x}1", rest)
	g.rests("{y}1", rest)
	sendCommand(t, g.n, g.Trust(script.Slot(two.Lock)))
	g.rests("{x}1", rest)
	g.grants("{y}")
	x, y := alone(one.Acquire(time.Second, 1, 0)).Words, alone(two.Acquire(time.Second, 1, 0)).Words
	for lock, marker := range map[string]string{one.Lock: x[6], two.Lock: y[6]} {
		if script.Slot(lock) != script.Slot(marker) {
			t.Errorf("%s and %s have different slots", lock, marker)
		}
		if why := script.Reserved("", strings.Replace(marker, "p:", "", 1)); !strings.Contains(why, "guard") {
			t.Errorf("%q without a prefix may be locked: %s", marker, why)
		}
	}
	if !slices.Contains(g.s.Keys(t, "{*}}p:guard"), x[6]) {
		t.Errorf("%s does not match the pattern of the documentation", x[6])
	}
}

// A call with a guard has no more words than Redis accepts from a client that has not authenticated.
func TestGuardedCallsHaveTenWordsAtMost(t *testing.T) {
	g := guard{Guard: guardOf(guarded)}
	a := g.attempt("k", "a")
	a.Fences = 128
	for _, cmd := range []script.Command{
		a.Acquire(time.Second, 1, 5), a.Enqueue(time.Second, 0, 0, ""), a.Claim(time.Second), g.Trust(0),
		script.Release{Attempt: a, Notify: script.NotifyQueue}.Command(), a.Resume(theText, time.Second),
		script.Release{Attempt: a, Tombstone: time.Second}.Export(theText, time.Second),
	} {
		if words := alone(cmd).Words; len(words) < 5 || len(words) > 10 {
			t.Errorf("%d words: %q", len(words), words)
		}
	}
}

// Without a guard, no script has anything of it, and no command has another key or word.
func TestWithoutAGuardThereIsNothingOfIt(t *testing.T) {
	g := guard{Guard: guardOf(guarded)}
	a := g.attempt("k", "a")
	bare := a
	bare.Guard = nil
	for what, of := range map[string]func(a script.Attempt) script.Command{
		"acquire": func(a script.Attempt) script.Command { return a.Acquire(time.Second, 1, 0) },
		"enqueue": func(a script.Attempt) script.Command { return a.Enqueue(time.Second, 0, 0, "c") },
		"resume":  func(a script.Attempt) script.Command { return a.Resume(theText, time.Second) },
		"force":   func(a script.Attempt) script.Command { return a.Force("v", time.Second, false, a.Guard) },
		"release": func(a script.Attempt) script.Command {
			return script.Release{Attempt: a, Notify: script.NotifyQueue}.Command()
		},
		"joined": func(a script.Attempt) script.Command {
			return script.Join([]*script.Usual{a.Acquire(time.Second, 1, 0).Usual})
		},
	} {
		plain, with := alone(of(bare)), alone(of(a))
		if strings.Contains(plain.Source, "INFO") || slices.Contains(plain.Words, g.marker()) {
			t.Errorf("%s: %q", what, plain.Words)
		}
		if !strings.Contains(with.Source, "INFO") || !slices.Contains(with.Words, g.marker()) {
			t.Errorf("%s with a guard: %q", what, with.Words)
		}
		for _, c := range []script.Command{plain, with} {
			if strings.Contains(c.Source, "if guarded") || strings.Contains(c.Source, "include ") {
				t.Errorf("%s is not expanded:\n%s", what, c.Source)
			}
		}
	}
	// Releases alone grant nothing.
	r := script.Release{Attempt: a}.Command().Usual
	if cmd := script.Join([]*script.Usual{r, r}); strings.Contains(cmd.Source, "INFO") || len(cmd.Words) != 9 {
		t.Errorf("releases alone: %q", cmd.Words)
	}
}

// However many acquisitions a joined command has, the server is asked once whether it rests.
func TestOneInfoForManyAcquisitions(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.rests("k", rest)
	g.age()
	var usual []*script.Usual
	for i := range script.MaxJoined {
		usual = append(usual, g.attempt(fmt.Sprint("k", i), "a").Acquire(time.Second, 1, 0).Usual)
	}
	g.s.Cmd(t, "CONFIG", "RESETSTAT")
	counters, err := script.ReadJoined(sendCommand(t, g.n, script.Join(usual)), len(usual))
	if err != nil || slices.Min(counters) == 0 {
		t.Errorf("%v, %v", counters, err)
	}
	stats := g.s.Cmd(t, "INFO", "commandstats").(string)
	if !strings.Contains(stats, "cmdstat_info:calls=1,") {
		t.Errorf("the server has counted\n%s", stats)
	}
}

// In a joined command the marker and the guard are between what acquisitions need and what releases do. A server that
// rests releases what it is told to, and grants nothing.
func TestReleasesAreJoinedUnderAGuard(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	g.rests("k", rest)
	node := simnode.New()
	for _, rests := range []bool{true, false} {
		var usual []*script.Usual
		for _, key := range []string{"{x}1", "{x}2", "y"} {
			usual = append(usual, g.attempt(key, "a").Acquire(time.Minute, 1, 0).Usual)
		}
		for _, key := range []string{"p:{x}3", "p:z", "p:other"} {
			value := script.CounterText(7) + "|b|1|"
			usual = append(usual, &script.Usual{Lock: key, Text: value})
			if key == "p:other" {
				value = script.CounterText(8) + "|c|1|"
			}
			g.s.Cmd(t, "SET", key, value)
			node.Put(key, value)
		}
		if !rests {
			g.age()
			value, _ := g.s.Cmd(t, "GET", g.marker()).(string)
			node.Put(g.marker(), "0:1:"+value[strings.LastIndex(value, ":")+1:])
		}
		cmd := script.Join(usual)
		for who, reply := range map[string]drivers.Reply{
			"server": sendCommand(t, g.n, cmd), "node": node.Execute(cmd.Words),
		} {
			numbers, err := script.ReadJoined(reply, len(usual))
			if err != nil || !slices.Equal(numbers[3:], []int64{1, 1, 0}) {
				t.Errorf("%s rests %v: the releases are answered %v, %v", who, rests, numbers, err)
			}
			for i, n := range numbers[:min(3, len(numbers))] {
				if (n == 0) != rests {
					t.Errorf("%s rests %v: acquisition %d is answered %d", who, rests, i, n)
				}
			}
		}
		for _, u := range usual {
			want := int64(0)
			if u.Lock == "p:other" || !u.IsRelease() && !rests {
				want = 1
			}
			if got := g.s.Cmd(t, "EXISTS", u.Lock); got != want {
				t.Errorf("rests %v: %s is there: %v, want %d", rests, u.Lock, got, want)
			}
		}
	}
}

// A release, a waiter that leaves and an operator who takes the lock away hand nothing on while the server rests.
// Waiters get the lock by a request of their own.
func TestServerThatRestsHandsNothingOn(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	for what, free := range map[string]func(a script.Attempt) script.Command{
		"release": func(a script.Attempt) script.Command {
			return script.Release{Attempt: a, Notify: script.NotifyQueue}.Command()
		},
		"leave": func(a script.Attempt) script.Command {
			g.s.Cmd(t, "DEL", a.Lock)
			r := script.Release{Attempt: g.attempt("k", "c"), Tombstone: time.Minute, Notify: script.NotifyQueue}
			return r.Command()
		},
		"force": func(a script.Attempt) script.Command {
			value, _ := g.s.Cmd(t, "GET", a.Lock).(string)
			return a.Force(value, time.Minute, false, g.Guard)
		},
	} {
		for _, rests := range []bool{true, false} {
			g.s.Cmd(t, "FLUSHALL")
			g.rests("k", rest)
			g.age()
			a, b := g.attempt("k", "a"), g.attempt("k", "b")
			g.acquire("k", "a")
			p, err := script.ReadPosition(sendCommand(t, g.n, b.Enqueue(time.Minute, script.MaxPositionTTL, 0, "")))
			if err != nil || p.Status != script.Waiting {
				t.Fatalf("%+v, %v", p, err)
			}
			if rests {
				g.s.Cmd(t, "DEL", g.marker())
			}
			sendCommand(t, g.n, free(a))
			_, owner := counterOf(t, g.s, a.Lock)
			if want := map[bool]string{true: "", false: "b"}[rests]; owner != want {
				t.Errorf("%s, rests %v: %q has the lock, want %q", what, rests, owner, want)
			}
			if !rests {
				continue
			}
			enqueue := b.Enqueue(time.Minute, script.MaxPositionTTL, p.Ticket, "")
			if p, err = script.ReadPosition(sendCommand(t, g.n, enqueue)); err != nil || p.Status != script.Resting {
				t.Errorf("%s: the waiter gets %+v, %v", what, p, err)
			}
			g.age()
			if p, err = script.ReadPosition(sendCommand(t, g.n, enqueue)); err != nil || p.Status != script.Granted {
				t.Errorf("%s: after the rest, the waiter gets %+v, %v", what, p, err)
			}
		}
	}
}

// A waiter begins to rely on a lock that it was granted only when the server confirms that. A server that rests does
// not: its data may be older than what it has granted to others. With the clock set back, such a lock may have any time
// left.
func TestServerThatRestsConfirmsNoGrant(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	a := g.attempt("k", "a")
	for _, left := range []time.Duration{time.Second, time.Hour} {
		g.s.Cmd(t, "FLUSHALL")
		g.rests("k", rest)
		g.age()
		g.acquire("k", "a")
		g.s.Cmd(t, "PEXPIRE", a.Lock, left.Milliseconds())
		marker := g.s.Cmd(t, "GET", g.marker())
		for what, cmd := range map[string]script.Command{
			"claim": a.Claim(guarded), "enqueue": a.Enqueue(guarded, script.MaxPositionTTL, 1, ""),
		} {
			for _, want := range []script.Status{script.Resting, script.Granted} {
				if g.s.Cmd(t, "DEL", g.marker()); want == script.Granted {
					g.s.Cmd(t, "SET", g.marker(), marker)
				}
				p, err := script.ReadPosition(sendCommand(t, g.n, cmd))
				if err != nil || p.Status != want {
					t.Errorf("%s of a lock with %v left: %+v, %v, want %d", what, left, p, err, want)
				}
			}
		}
	}
}
