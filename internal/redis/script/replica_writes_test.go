package script_test

import (
	"slices"
	"testing"
	"time"
)

// From Redis 7.2 on, WAIT waits for the last write of its own connection, and not for those of others before it. So a
// claim and an extension write in any case. Otherwise replicas could confirm them that lack the lock.
func TestWhatProlongsALockIsAWrite(t *testing.T) {
	x := newQueue(t)
	put(t, x.s, "a", 5)
	x.s.Cmd(t, "PEXPIRE", "k", 60_000)
	for what, prolong := range map[string]func(){
		"extend": func() { x.is("extend", x.extend("a", 5), int64(1)) },
		"claim":  func() { x.granted("a", x.claim("a", "10000"), 50*time.Second, time.Minute) },
		"export again": func() {
			put(t, x.s, theText, 5)
			x.s.Cmd(t, "PEXPIRE", "k", 60_000)
			x.is("export", x.exports("a", 5, 10*time.Second, 0), int64(1))
		},
		"resume again": func() {
			put(t, x.s, "a", 5)
			x.s.Cmd(t, "PEXPIRE", "k", 60_000)
			x.is("resume", x.resumes("a", 10*time.Second), int64(5))
		},
	} {
		lines := x.executes(prolong)
		if !slices.ContainsFunc(lines, func(words []string) bool { return words[0] == "PEXPIRE" && words[1] == "k" }) {
			t.Errorf("%s writes nothing: %q", what, lines)
		}
		if left := x.s.PTTL(t, "k"); left < 50*time.Second {
			t.Errorf("%s by 10 s shortens the lock to %v", what, left)
		}
	}
}

// So do a claim and an extension of permits, also if their keys live for longer than that already.
func TestWhatProlongsPermitsIsAWrite(t *testing.T) {
	x := newPermits(t)
	first := x.has("first", x.asks("first", 2, 1), 0)
	x.is("extend by an hour", sendCommand(t, x.n, x.as("first", 2, 1).Extend(time.Hour, first)), int64(1))
	a := x.has("a", x.asks("a", 2, 1), 1)
	for what, prolong := range map[string]func(){
		"extend": func() { x.is("extend", sendCommand(t, x.n, x.as("a", 2, 1).Extend(time.Second, a)), int64(1)) },
		"claim":  func() { x.claims("a") },
	} {
		lines := x.executes(prolong)
		if !slices.ContainsFunc(lines, func(words []string) bool { return words[0] == "PEXPIRE" && words[1] == x.k.Lock }) {
			t.Errorf("%s writes nothing: %q", what, lines)
		}
		x.entry("a", permitsTTL)
	}
}
