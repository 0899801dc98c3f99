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
