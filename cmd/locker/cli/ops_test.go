//go:build unix

package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
)

// nodes starts n servers and returns the URL of a Redlock on them.
func nodes(t *testing.T, n int) (ss []*redistest.Server, url string) {
	t.Helper()
	var addrs []string
	for range n {
		s := redistest.Start(t, durable...)
		ss, addrs = append(ss, s), append(addrs, s.Addr())
	}
	return ss, "redlock://" + strings.Join(addrs, ",")
}

// heldBy locks key like a program.
func heldBy(t *testing.T, url, key string) locker.Lease {
	t.Helper()
	l, err := config.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	lease, err := l.Lock(t.Context(), key, locker.TTL(time.Minute))
	require.NoError(t, err)
	return lease
}

// decode parses JSON that a command has printed.
func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

func TestInspectAndRelease(t *testing.T) {
	t.Parallel()
	_, one := server(t)
	_, three := nodes(t, 3)
	for _, url := range []string{one, three} {
		env := []string{"LOCKER_URL=" + url}
		code, out, _ := call(env, "inspect", "k")
		assert.Equal(t, 0, code)
		assert.Regexp(t, `(?m)^state +free$`, out)
		code, _, stderr := call(env, "release", "k", "--yes")
		assert.Equal(t, 0, code)
		assert.Contains(t, stderr, "nothing to release")

		lease := heldBy(t, url, "k")
		code, out, _ = call(env, "inspect", "k")
		assert.Equal(t, 0, code)
		assert.Regexp(t,
			`(?m)^state +held .*for .+ unless renewed\nowner +\Q`+lease.Token()[:8]+`…\E\nacquired +\S+ ago\nfence `, out)
		assert.NotContains(t, out, lease.Token())
		code, out, _ = call(env, "inspect", "k", "--json")
		assert.Equal(t, 0, code)
		seen := decode[lockJSON](t, out)
		assert.Equal(t, "held", seen.State)
		assert.Equal(t, lease.Fence(), seen.Fence)
		assert.Len(t, seen.Nodes, strings.Count(url, ",")*3/2)

		code, _, stderr = call(env, "release", "k")
		assert.Equal(t, exit.Usage, code, "nobody can be asked")
		assert.Contains(t, stderr, "--yes")
		code, _, _ = call(env, "release", "k", "--yes", "--token", "abc")
		assert.Equal(t, exit.Usage, code, "too short to mean one owner")
		for _, token := range []string{"", "…"} { // as from a script whose variable is not set
			code, _, _ = call(env, "release", "k", "--yes", "--token", token)
			assert.Equal(t, exit.Usage, code, "it means nobody, and not everybody")
		}
		code, _, stderr = call(env, "release", "k", "--yes", "--token", "not this one")
		assert.Equal(t, exit.Held, code)
		assert.Contains(t, stderr, lease.Token()[:8])
		require.NoError(t, lease.Extend(t.Context()), "the lock was taken from another owner")

		code, out, _ = call(env, "release", "k", "--yes", "--token", lease.Token()[:8]+"…")
		assert.Equal(t, 0, code)
		assert.Regexp(t, `^released "k", taken from .*\Q`+lease.Token()[:8]+`…\E\)?, who had it for `, out)
		eventually(t, "its owner has lost it", func() bool { return errors.Is(lease.Extend(t.Context()), locker.ErrLost) })
	}
}

// Several locks are shown in the order in which they are named. One that cannot be inspected does not hide the others.
func TestInspectOfSeveralLocks(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	env := []string{"LOCKER_URL=" + url + "?prefix="}
	heldBy(t, url+"?prefix=", "b")
	code, out, _ := call(env, "inspect", "--key", "a", "--key", "b", "-k", "c")
	assert.Equal(t, 0, code)
	assert.Regexp(t, `(?s)^lock +"a"\nstate +free\n.*\n\nlock +"b"\nstate +held .*\n\nlock +"c"\nstate +free\n`, out)
	code, out, stderr := call(env, "inspect", "--key", "a", "--key", "{b}:lockqueue", "--key", "b", "--json")
	assert.Equal(t, exit.Usage, code)
	assert.Contains(t, stderr, "reserved")
	var seen []string
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var lock lockJSON
		require.NoError(t, d.Decode(&lock))
		seen = append(seen, lock.Key+" "+lock.State)
	}
	assert.Equal(t, []string{"a free", "b held"}, seen)
}

func TestInspectWhenNodesHang(t *testing.T) {
	t.Parallel()
	ss, url := nodes(t, 3)
	env := []string{"LOCKER_URL=" + url + "?budget=2s"}
	lease := heldBy(t, url, "k")
	for _, s := range ss { // a majority has granted the lock, and the other nodes follow
		require.Eventually(t, func() bool { return s.Cmd(t, "EXISTS", "lock:k") == int64(1) }, time.Minute,
			time.Millisecond)
	}
	ss[0].Pause()
	defer ss[0].Resume()
	code, out, _ := call(env, "inspect", "k")
	assert.Equal(t, 0, code)
	assert.Regexp(t, `(?m)^state +held .* unless renewed$`, out)
	assert.Regexp(t, `(?m)^\Q`+ss[0].Addr()+`\E +unknown: `, out)
	ss[1].Pause()
	defer ss[1].Resume()
	code, out, stderr := call(env, "inspect", "k")
	assert.Equal(t, exit.Unavailable, code)
	assert.Regexp(t, `(?m)^state +unknown$`, out)
	assert.Contains(t, stderr, "1 of 3 nodes answered")
	ss[1].Resume()
	_ = lease.Unlock(t.Context())
}

func TestWhatCannotBeInspected(t *testing.T) {
	s, url := server(t)
	s.Cmd(t, "RPUSH", "lock:list", "x")
	code, out, _ := call([]string{"LOCKER_URL=" + url}, "inspect", "list")
	assert.Equal(t, 0, code)
	assert.Regexp(t, `(?m)^state +foreign$`, out)
	code, _, _ = call([]string{"LOCKER_URL=" + url}, "release", "list", "--yes")
	assert.Equal(t, exit.Data, code)
	for _, args := range [][]string{
		{"inspect", "k"}, {"release", "k", "--yes"}, {"watch", "k"}, {"doctor"}, {"conform"},
	} {
		code, _, stderr := call([]string{"LOCKER_URL=memory:"}, args...)
		assert.Equal(t, exit.Config, code, args)
		assert.Contains(t, stderr, "memory", args)
	}
	s.Kill()
	for _, args := range [][]string{{"inspect", "k"}, {"conform"}} {
		code, out, stderr := call([]string{"LOCKER_URL=" + url}, args...)
		assert.Equal(t, exit.Unavailable, code, args)
		assert.Empty(t, strings.TrimSpace(out), args)
		assert.Contains(t, stderr, "start redis-server", args)
	}
}

// TestWatch checks the lines of JSON that watch prints for each change of a lock, until Ctrl-C.
func TestWatch(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	p := run(t, url, "watch", "k", "--json", "--interval", "100ms")
	changes := func(want ...string) {
		t.Helper()
		var got []string
		eventually(t, strings.Join(want, ", "), func() bool {
			got = nil
			for in := bufio.NewScanner(strings.NewReader(p.out.String())); in.Scan(); {
				state := decode[lockJSON](t, in.Text()).State
				if n := len(got); n > 0 && state == "unknown" && got[n-1] == state {
					continue // the state is the same, and only the reason has changed
				}
				got = append(got, state)
			}
			return len(got) >= len(want)
		})
		require.Equal(t, want, got)
	}
	changes("free")
	first := heldBy(t, url, "k")
	changes("free", "held")
	require.NoError(t, first.Extend(t.Context()))
	steady.Unlock(t, first)
	changes("free", "held", "free")
	s.Kill()
	changes("free", "held", "free", "unknown")
	s.Restart()
	changes("free", "held", "free", "unknown", "free")
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.exits(t, 0)
}

func TestDoctorForMonitors(t *testing.T) {
	t.Parallel()
	ss, url := nodes(t, 5)
	doubled := url[:strings.LastIndex(url, ",")] + ",localhost" + ss[0].Addr()[strings.LastIndex(ss[0].Addr(), ":"):]
	wait := "?budget=1m&ttl=10m" // so that the test passes on a busy machine
	code, out, stderr := callAgain([]string{"LOCKER_URL=" + url + wait}, "doctor")
	assert.Equal(t, 0, code, out+stderr)
	code, out, _ = callAgain([]string{"LOCKER_URL=" + url + wait}, "doctor", "--quiet")
	assert.Equal(t, 0, code)
	assert.Empty(t, out)
	code, out, _ = callAgain([]string{"LOCKER_URL=" + doubled + wait}, "doctor", "--json")
	assert.Equal(t, exitFail, code)
	r := decode[doctor.Report](t, out)
	assert.Equal(t, doctor.Fail, r.Level)
	var failed []string
	for _, f := range r.Findings {
		if f.Level == doctor.Fail {
			failed = append(failed, f.Check)
		}
	}
	assert.Equal(t, []string{"identity", "independence", "independence"}, failed)
	ss[1].Cmd(t, "CONFIG", "SET", "appendfsync", "no")
	code, out, _ = callAgain([]string{"LOCKER_URL=" + url + wait}, "doctor", "-q")
	assert.Equal(t, exitWarn, code)
	assert.Contains(t, out, "appendfsync is no")
	assert.Contains(t, out, "→ CONFIG SET appendfsync always")
}

func TestAfterRestart(t *testing.T) {
	for url, want := range map[string]string{
		"redlock://a,b,c":        "keep b:6379 away from clients for 12.2s after it has ended\n",
		"redlock://a,b,c?ttl=1m": "keep b:6379 away from clients for 1m3.2s after it has ended\n",
		"redlock://a,b,c?ttl=10s&guard=30s": "b:6379 needs no delay: with the restart guard of 30s it grants no lock " +
			"for 32.6s\n",
	} {
		code, stdout, stderr := call([]string{"LOCKER_URL=" + url}, "doctor", "--after-restart", "b:6379")
		assert.Zero(t, code, stderr)
		assert.Equal(t, want, stdout)
	}
	env := []string{"LOCKER_URL=redlock://a,b,c"}
	code, stdout, stderr := call(env, "doctor", "--after-restart", "b:6379", "--longest-ttl", "30s")
	assert.Zero(t, code)
	assert.Contains(t, stdout, "for 32.6s after")
	assert.Contains(t, stderr, "ExecStartPre=+/bin/sleep 33\n    TimeoutStartSec=123\n")
	assert.Contains(t, stderr, "guard=30s in the URL")
	_, stdout, _ = call(env, "doctor", "--after-restart", "b:6379", "--json")
	assert.Contains(t, stdout, `"keep_out_ms": 12200`)
}

func TestWrongArgumentsOfAfterRestart(t *testing.T) {
	env := []string{"LOCKER_URL=redlock://a,b,c"}
	for line, want := range map[string]string{
		"doctor --longest-ttl 1m":                         "--longest-ttl needs --after-restart",
		"doctor --after-restart d":                        `"d" is none of the configured servers: give one of a:6379, b`,
		"doctor --after-restart a:6379 --longest-ttl 1ms": "--longest-ttl 1ms is not from 10ms to 24h0m0s",
	} {
		code, _, stderr := call(env, strings.Fields(line)...)
		assert.Equal(t, exit.Usage, code, line)
		assert.Contains(t, stderr, want, line)
	}
}

// TestHolderIsNamed: by its label in text and JSON, which cannot change the terminal.
func TestHolderIsNamed(t *testing.T) {
	for label, want := range map[string]string{
		"web-7:4211": "held by web-7:4211 for 28 s unless renewed",
		"":           "held for 28 s unless renewed",
		"\x1b[2J":    `held by "\x1b[2J" for 28 s unless renewed`,
	} {
		var out bytes.Buffer
		a := &app{stdout: &out}
		node := inspect.Inspection{State: inspect.Held, Owner: "OkdgU1wA", Label: label, Remaining: 28 * time.Second}
		seen := node
		seen.Nodes = []inspect.Node{{Name: "a", Inspection: node}}
		a.printInspection("k", seen)
		assert.Contains(t, out.String(), "state    "+want+"\nowner    OkdgU1wA…\n")
		assert.NotContains(t, out.String(), "\x1b[2J")
		assert.Contains(t, (&view{app: a, key: "k", last: seen}).line(time.Now()), `"k" `+want+", owner OkdgU1wA…")

		text, err := json.Marshal(lockOf("k", seen))
		require.NoError(t, err)
		j := decode[lockJSON](t, string(text))
		assert.Equal(t, label, j.Label)
		assert.Equal(t, label, j.Nodes[0].Label)
	}
}

// On a store that does not count TTLs, the commands say what this process knows, and not that the lock was acquired
// when it looked.
func TestWhatIsKnownOfALockThatIsWatched(t *testing.T) {
	const seenAgo = "held by web-7:4211, first seen 12 ms ago; from a dead holder it can be taken in 5.1 s"
	held := inspect.Inspection{
		State: inspect.Held, Owner: "OkdgU1wA", Label: "web-7:4211", Remaining: 5100 * time.Millisecond,
		Seen: 12 * time.Millisecond, Held: 12 * time.Millisecond,
	}
	renewed := held
	renewed.Held = time.Minute
	kept := inspect.Inspection{
		State: inspect.Kept, Owner: "OkdgU1wA", Remaining: 5 * time.Minute, Seen: 12 * time.Millisecond,
	}
	for _, tt := range []struct {
		seen                          inspect.Inspection
		shown, followed, json, forced string
	}{
		{
			held, "state    " + seenAgo + "\nowner    OkdgU1wA…\nwaiting  0\n", `"k" ` + seenAgo + ", owner OkdgU1wA…",
			`{"key":"k","state":"held","owner":"OkdgU1wA","label":"web-7:4211","seen_ms":12,"remaining_ms":5100,"waiting":0}`,
			"released \"k\", taken from web-7:4211 (OkdgU1wA…)\n",
		},
		{
			renewed, "state     " + seenAgo + "\nowner     OkdgU1wA…\nacquired  at least 1m0s ago\nwaiting   0\n",
			`"k" ` + seenAgo + ", owner OkdgU1wA…",
			`{"key":"k","state":"held","owner":"OkdgU1wA","label":"web-7:4211","held_ms":60000,"seen_ms":12,` +
				`"remaining_ms":5100,"waiting":0}`,
			"released \"k\", taken from web-7:4211 (OkdgU1wA…), who had it for at least 1m0s\n",
		},
		{
			kept, "state    kept\nowner    nobody (last OkdgU1wA…)\n" +
				"free in  5m0s for those who watch it, first seen 12ms ago\nwaiting  0\n",
			`"k" kept nobody (last OkdgU1wA…), free in 5m0s for those who watch it, first seen 12ms ago`,
			`{"key":"k","state":"kept","owner":"OkdgU1wA","seen_ms":12,"remaining_ms":300000,"waiting":0}`,
			"released \"k\", taken from nobody: it was kept by --min-hold, after OkdgU1wA…\n",
		},
	} {
		var out bytes.Buffer
		a := &app{stdout: &out}
		a.printInspection("k", tt.seen)
		_, shown, _ := strings.Cut(out.String(), "\n") // without the name
		assert.Equal(t, tt.shown, shown)
		v := &view{app: a, key: "k", last: tt.seen}
		_, followed, _ := strings.Cut(v.line(time.Now())+v.countdown(), "  ") // without the time
		assert.Equal(t, tt.followed, followed)
		text, err := json.Marshal(lockOf("k", tt.seen))
		require.NoError(t, err)
		assert.JSONEq(t, tt.json, string(text))
		out.Reset()
		require.NoError(t, a.released("k", tt.seen, nil))
		assert.Equal(t, tt.forced, out.String())
	}
}

func TestReleaseNamesTheHolder(t *testing.T) {
	for label, want := range map[string]string{
		"web-7:4211": "released \"k\", taken from web-7:4211 (OkdgU1wA…), who had it for 2s\n",
		"":           "released \"k\", taken from OkdgU1wA…, who had it for 2s\n",
	} {
		var out bytes.Buffer
		a := &app{stdout: &out}
		seen := inspect.Inspection{State: inspect.Held, Owner: "OkdgU1wA", Label: label, Held: 2 * time.Second}
		require.NoError(t, a.released("k", seen, nil))
		assert.Equal(t, want, out.String())
	}
}
