package script_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/redis/script"
)

func TestProtocolConstantsAreTheScripts(t *testing.T) {
	for name, want := range map[string]time.Duration{"CLAIM": script.ClaimWindow, "MAXPOSTTL": script.MaxPositionTTL} {
		m := regexp.MustCompile(`(?m)^local ` + name + ` = (\d+) `).FindStringSubmatch(script.Expand("queue.lua"))
		if m == nil || m[1] != script.Milliseconds(want) {
			t.Errorf("queue.lua has %s = %q, want %s", name, m, script.Milliseconds(want))
		}
	}
}

// Of a client that has not authenticated, Redis takes ten words, and would answer "unauthenticated multibulk length"
// instead of NOAUTH.
func TestCallsHaveTenWordsAtMost(t *testing.T) {
	for _, s := range []*script.Source{
		acquireScript, raiseScript, extendScript, releaseScript, enqueueScript, claimScript, handoverScript,
		turnScript, turnReleaseScript, exportScript, resumeScript,
	} {
		source := s.Text()
		words := 3
		for _, what := range []string{"KEYS", "ARGV"} {
			last := 0
			for _, m := range regexp.MustCompile(what+`\[(\d)\]`).FindAllStringSubmatch(source, -1) {
				i, _ := strconv.Atoi(m[1])
				last = max(last, i)
			}
			words += last
		}
		if words < 6 || words > 10 {
			t.Errorf("%d words: %s", words, strings.SplitN(source, "\n", 2)[0])
		}
	}
}

// What an uncontended lock costs the server: calls of commands, the script's own not counted.
func TestCostOfAnUncontendedLock(t *testing.T) {
	x := newQueue(t)
	calls := func(what string, want int, f func()) {
		t.Helper()
		f() // the script is known from now on
		x.s.Cmd(t, "FLUSHALL")
		f()
		x.s.Cmd(t, "CONFIG", "RESETSTAT")
		f()
		got := 0
		stats := x.s.Cmd(t, "INFO", "commandstats").(string)
		for _, m := range regexp.MustCompile(`cmdstat_(\w+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
			if m[1] != "evalsha" && m[1] != "config" && m[1] != "del" {
				n, _ := strconv.Atoi(m[2])
				got += n
			}
		}
		if got != want {
			t.Errorf("%s makes %d calls, want %d", what, got, want)
		}
	}
	k := x.k
	calls("acquire", 5, func() {
		x.s.Cmd(t, "DEL", "k")
		send(t, x.n, acquireScript, acquireCommand("a", 1, 0))
	})
	calls("enqueue", 7, func() {
		x.s.Cmd(t, "DEL", "k")
		x.enqueue("a", usualArgs)
	})
	// DEL is not counted; SET is ours.
	held := func(release func()) func() {
		return func() {
			put(t, x.s, "a", 1)
			release()
		}
	}
	calls("release", 1+1, held(func() {
		x.is("release", send(t, x.n, releaseScript, releaseScript.Command(
			releaseKeys(k), text("a"), "0:0:9999999999999999")), int64(1))
	}))
	calls("handover", 1+4, held(func() { x.is("handover", x.release("a", "0:0:9999999999999999"), int64(1)) }))
	calls("turnrelease", 1+2, held(func() {
		x.is("turnrelease", send(t, x.n, turnReleaseScript, turnReleaseScript.Command(
			turnKeys(k), text("a"), "0:0:9999999999999999:")), int64(1))
	}))
}
