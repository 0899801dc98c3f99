package script_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigo"
	"github.com/golocker/locker/internal/node"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	acquireScript, raiseScript, extendScript, releaseScript = script.AcquireScript, script.RaiseScript, script.ExtendScript, script.ReleaseScript
	enqueueScript, claimScript, handoverScript              = script.EnqueueScript, script.ClaimScript, script.HandoverScript
	turnScript, turnReleaseScript                           = script.TurnScript, script.TurnReleaseScript
	inspectScript, forceScript                              = script.InspectScript, script.ForceScript
)

const (
	timeout       = 5 * time.Second
	tombstoneLife = time.Minute

	again, waited = script.Again, script.AnyWaited
)

// server is a Node on a real server, and the driver under it, for what no Node sends.
type server struct {
	*node.Node
	driver drivers.Driver
}

// real returns a real server.
func real(t *testing.T, args ...string) (*redistest.Server, *server) {
	t.Helper()
	s := redistest.Start(t, args...)
	return s, reach(t, s, func() (redis.Conn, error) { return redis.Dial("tcp", s.Addr()) })
}

func reach(t *testing.T, s *redistest.Server, dial func() (redis.Conn, error)) *server {
	pool := &redis.Pool{MaxIdle: 4, Dial: dial}
	d := redigo.New(pool)
	n := node.New(d, node.Options{Name: s.Addr(), Timeout: timeout})
	t.Cleanup(func() {
		_ = n.Close()
		_ = pool.Close()
	})
	return &server{n, d}
}

func request(token string) locker.Request {
	return locker.Request{Key: "k", Token: token, TTL: 10 * time.Second}
}

func acquire(t *testing.T, n *server, token string, ttl time.Duration) uint64 {
	t.Helper()
	g, err := n.Acquire(t.Context(), locker.Request{Key: "k", Token: token, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return g.Fence
}

func pttl(t *testing.T, s *redistest.Server, key string) time.Duration {
	t.Helper()
	return time.Duration(s.Cmd(t, "PTTL", key).(int64)) * time.Millisecond
}

// send runs one script as it stands, without the node's care for unknown outcomes.
func send(t *testing.T, n *server, script *script.Source, cmd drivers.Command) drivers.Reply {
	t.Helper()
	replies, err := n.driver.Do(t.Context(), cmd)
	if e, refused := replies[0].(drivers.ServerError); err == nil && refused && e.Code() == "NOSCRIPT" {
		full := append(drivers.Command{"EVAL", script.Text()}, cmd[2:]...)
		replies, err = n.driver.Do(t.Context(), full)
	}
	if err != nil {
		t.Fatal(err)
	}
	return replies[0]
}

// acquireCommand is an attempt on k with its counter after quantum and hint.
func acquireCommand(token string, quantum, hint uint64) drivers.Command {
	k := script.KeysOf("k")
	return acquireScript.Command([]string{k.Lock, k.Fence(), k.Tombstone(token)},
		token, "10000", fmt.Sprint(quantum), fmt.Sprint(hint))
}

func releaseCommand(token string, landed bool) drivers.Command {
	r := script.Release{Attempt: script.Attempt{Keys: script.KeysOf("k"), Token: token}, Tombstone: 10*time.Second + tombstoneLife}
	if landed {
		r.Tombstone = 0
	}
	return r.Command().Words
}

// acquired reads the answer to an attempt.
func acquired(t *testing.T, reply drivers.Reply) script.Acquired {
	t.Helper()
	a, err := script.ReadAcquired(reply)
	if err != nil {
		t.Error(err)
	}
	return a
}

func TestAcquireScriptIsIdempotent(t *testing.T) {
	s, n := real(t)
	fence := acquire(t, n, "a", 10*time.Second)
	s.Cmd(t, "PEXPIRE", "k", 5000)
	if again := acquire(t, n, "a", 10*time.Second); again != fence {
		t.Errorf("the second delivery got token %d, the first %d", again, fence)
	}
	if left := pttl(t, s, "k"); left > 5*time.Second {
		t.Errorf("the second delivery prolonged the lock to %v", left)
	}
	_, err := n.Acquire(t.Context(), request("b"))
	var held *locker.HeldError
	if !errors.As(err, &held) || held.Remaining <= 0 || held.Remaining > 5*time.Second {
		t.Errorf("another owner got %v", err)
	}
}

func TestAttemptThatLandsAfterItsReleaseSetsNothing(t *testing.T) {
	s, n := real(t)
	if r := send(t, n, releaseScript, releaseCommand("a", false)); r != int64(0) {
		t.Errorf("release of nothing answered %v", r)
	}
	if a := acquired(t, send(t, n, acquireScript, acquireCommand("a", 1, 0))); a.Status != script.GivenUp {
		t.Errorf("the late attempt got %v", a)
	}
	if got := s.Keys(t, "k"); len(got) != 0 {
		t.Errorf("it left %q", got)
	}
	if _, err := n.Acquire(t.Context(), request("b")); err != nil {
		t.Errorf("the tombstone of one attempt stops another: %v", err)
	}
	for _, key := range s.Keys(t, "*gone*") {
		if left := pttl(t, s, key); left <= 0 || left > 10*time.Second+tombstoneLife {
			t.Errorf("the tombstone lives for %v", left)
		}
	}
}

func TestReleaseScript(t *testing.T) {
	s, n := real(t)
	acquire(t, n, "a", 10*time.Second)
	if r := send(t, n, releaseScript, releaseCommand("b", true)); r != int64(4) || s.Cmd(t, "GET", "k") != "a" {
		t.Errorf("another owner's release answered %v and left %v", r, s.Cmd(t, "GET", "k"))
	}
	for i, want := range []int64{1, 2, 2} { // delivered three times
		if r := send(t, n, releaseScript, releaseCommand("a", false)); r != want {
			t.Errorf("delivery %d answered %v, want %d", i+1, r, want)
		}
	}
	acquire(t, n, "c", 10*time.Second)
	if r := send(t, n, releaseScript, releaseCommand("a", false)); r != int64(2) || s.Cmd(t, "GET", "k") != "c" {
		t.Errorf("a fourth, after the next owner came, answered %v and left %v", r, s.Cmd(t, "GET", "k"))
	}
}

func TestExtendScript(t *testing.T) {
	s, n := real(t)
	req := locker.Request{Key: "k", Token: "a", TTL: 20 * time.Second}
	if err := n.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("without a lock: %v", err)
	}
	if got := s.Keys(t, "*"); len(got) != 0 {
		t.Errorf("it created %q", got)
	}
	req.Fence = acquire(t, n, "a", 10*time.Second)
	if err := n.Extend(t.Context(), req); err != nil {
		t.Error(err)
	}
	if left := pttl(t, s, "k"); left <= 19*time.Second {
		t.Errorf("%v left after an extension to 20s", left)
	}
	req.TTL = time.Second
	if err := n.Extend(t.Context(), req); err != nil {
		t.Error(err)
	}
	if left := pttl(t, s, "k"); left <= 15*time.Second {
		t.Errorf("an extension to 1s shortened 20s to %v", left)
	}
	other := req
	other.Token = "b"
	if err := n.Extend(t.Context(), other); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("another owner: %v", err)
	}

	counter := script.KeysOf("k").Fence()
	s.Cmd(t, "PEXPIRE", counter, 1000)
	if err := n.Extend(t.Context(), req); err != nil || pttl(t, s, counter) < script.CounterKeep-time.Minute {
		t.Errorf("%v; the counter of a held lock expires in %v", err, pttl(t, s, counter))
	}
	s.Cmd(t, "DEL", counter)
	if err := n.Extend(t.Context(), req); err != nil || s.Cmd(t, "GET", counter) != fmt.Sprint(req.Fence) {
		t.Errorf("%v; a lost counter was repaired to %v, want %d", err, s.Cmd(t, "GET", counter), req.Fence)
	}
	s.Cmd(t, "SET", counter, req.Fence+1)
	if err := n.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
		t.Errorf("after a newer token was issued: %v", err)
	}
}

// A counter that was lost while it was ahead of the clock is repaired for as long as any other: until the clock has
// passed it.
func TestRepairedCounterOutlivesItsValue(t *testing.T) {
	const ahead = 48 * time.Hour
	s, n := real(t)
	counter := script.KeysOf("k").Fence()
	s.Cmd(t, "SET", counter, time.Now().Add(ahead).UnixMicro())
	req := locker.Request{Key: "k", Token: "a", TTL: 20 * time.Second, Fence: acquire(t, n, "a", 10*time.Second)}
	s.Cmd(t, "DEL", counter)
	if err := n.Extend(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if left := pttl(t, s, counter); left < ahead+script.CounterKeep-time.Minute {
		t.Errorf("the repaired counter, %v ahead of the clock, expires in %v", ahead, left)
	}
}

func TestTokensGrow(t *testing.T) {
	s, n := real(t)
	counter := script.KeysOf("k").Fence()
	var last uint64
	next := func(what string) {
		t.Helper()
		token := "t" + fmt.Sprint(last)
		fence := acquire(t, n, token, 10*time.Second)
		if fence <= last {
			t.Errorf("%s: token %d after %d", what, fence, last)
		}
		if got := s.Cmd(t, "GET", counter); got != fmt.Sprint(fence) {
			t.Errorf("%s: counter %v, token %d", what, got, fence)
		}
		last = fence
		if err := n.Release(t.Context(), locker.Request{Key: "k", Token: token}); err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		next("one after another")
	}
	s.Cmd(t, "DEL", counter)
	next("after the counter was lost")
	s.Cmd(t, "FLUSHALL")
	next("after everything was lost")
	last += 3600e6
	s.Cmd(t, "SET", counter, last)
	next("after the clock was stepped back by an hour")
	if left := pttl(t, s, counter); left < script.CounterKeep+59*time.Minute {
		t.Errorf("a counter an hour ahead of the clock expires in %v, before the clock reaches it", left)
	}
}

func TestWhatIsNotALockIsLeftAlone(t *testing.T) {
	s, n := real(t)
	for name, set := range map[string][]any{
		"hash": {"HSET", "k", "f", "v"}, "string without expiry": {"SET", "k", "v"}, "list": {"RPUSH", "k", "v"},
	} {
		s.Cmd(t, "DEL", "k")
		s.Cmd(t, set...)
		before := fmt.Sprintf("%q", s.Cmd(t, "DUMP", "k"))
		if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrForeignKey) || errors.Is(err, locker.ErrHeld) {
			t.Errorf("%s: acquire says %v", name, err)
		}
		if err := n.Extend(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: extend says %v", name, err)
		}
		if err := n.Release(t.Context(), request("a")); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("%s: release says %v", name, err)
		}
		if after := fmt.Sprintf("%q", s.Cmd(t, "DUMP", "k")); after != before {
			t.Errorf("%s was changed", name)
		}
	}
}

// Locks of other libraries on the same key exclude ours, and ours theirs.
func TestOtherLibrariesLocksCount(t *testing.T) {
	s, n := real(t)
	s.Cmd(t, "SET", "k", "theirs", "NX", "PX", 10000)
	if _, err := n.Acquire(t.Context(), request("a")); !errors.Is(err, locker.ErrHeld) {
		t.Error(err)
	}
	s.Cmd(t, "DEL", "k")
	acquire(t, n, "a", 10*time.Second)
	if got := s.Cmd(t, "SET", "k", "theirs", "NX", "PX", 10000); got != nil {
		t.Errorf("SET NX answered %v on a held lock", got)
	}
}

// A refusal from inside of a script leaves no doubt that nothing was set, however the server words it.
func TestRefusalInAScriptLeavesNoDoubt(t *testing.T) {
	s, n := real(t)
	for code, refuse := range map[string][]any{
		"OOM":      {"CONFIG", "SET", "maxmemory", 1},
		"READONLY": {"REPLICAOF", "127.0.0.1", 1},
	} {
		s.Cmd(t, refuse...)
		req := request("a")
		ready := make(chan *node.Call, 1)
		var c node.Call
		n.StartAcquire(&c, ready, 0, &req, node.Acquisition{Quantum: 1})
		v := (<-ready).Vote()
		var e drivers.ServerError
		if !errors.As(v.Err, &e) || e.Code() != code || v.Doubtful {
			t.Errorf("%s: %+v", code, v)
		}
		s.Cmd(t, "CONFIG", "SET", "maxmemory", 0)
		s.Cmd(t, "REPLICAOF", "NO", "ONE")
	}
}

func TestOutOfMemory(t *testing.T) {
	s, n := real(t)
	fence := acquire(t, n, "a", 10*time.Second)
	s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	req := request("b")
	req.Key = "other"
	var e drivers.ServerError
	if _, err := n.Acquire(t.Context(), req); !errors.As(err, &e) || e.Code() != "OOM" {
		t.Errorf("acquire says %v", err)
	}
	if got := s.Keys(t, "*other*"); len(got) != 0 {
		t.Errorf("a refused acquisition left %q", got)
	}
	held := request("a")
	held.Fence = fence
	if err := n.Extend(t.Context(), held); err != nil {
		t.Errorf("extend: %v", err)
	}
	if err := n.Release(t.Context(), held); err != nil {
		t.Errorf("release: %v", err)
	}
}

func TestScriptFlushIsTransparent(t *testing.T) {
	s, n := real(t)
	for range 3 {
		fence := acquire(t, n, "a", 10*time.Second)
		s.Cmd(t, "SCRIPT", "FLUSH")
		req := request("a")
		req.Fence = fence
		if err := n.Extend(t.Context(), req); err != nil {
			t.Error(err)
		}
		s.Cmd(t, "SCRIPT", "FLUSH")
		if err := n.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		s.Cmd(t, "SCRIPT", "FLUSH")
	}
}

func TestSlotIsTheServers(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	for _, key := range oddKeys {
		k := script.KeysOf(key)
		want := s.Cmd(t, "CLUSTER", "KEYSLOT", key)
		for _, derived := range []string{k.Fence(), k.Queue(), k.Waiters(), k.Turn(), k.Tombstone("token")} {
			if got := s.Cmd(t, "CLUSTER", "KEYSLOT", derived); got != want {
				t.Errorf("%.40q: slot %v, %.40q: slot %v", key, want, derived, got)
			}
		}
	}
}

func TestCountersFollowQuantumAndHint(t *testing.T) {
	const quantum = 65536
	s, n := real(t)
	counter := func(token string, hint uint64) uint64 {
		t.Helper()
		s.Cmd(t, "DEL", "k")
		v := acquired(t, send(t, n, acquireScript, acquireCommand(token, quantum, hint)))
		if v.Status != script.Granted {
			t.Fatal(v)
		}
		return v.Counter
	}
	a := counter("a", 0)
	if a%quantum != 0 || time.Duration(time.Now().UnixMicro()-int64(a))*time.Microsecond > 2*quantum*time.Microsecond {
		t.Errorf("counter %d is not the clock rounded down to %d µs", a, quantum)
	}
	if b := counter("b", a+10*quantum); b != a+10*quantum+1 {
		t.Errorf("with the hint %d: %d", a+10*quantum, b)
	}
	if c := counter("c", uint64(time.Now().Add(2*time.Hour).UnixMicro())); c != a+10*quantum+2 {
		t.Errorf("a hint two hours ahead was followed: %d", c)
	}
}

func TestRaiseScript(t *testing.T) {
	s, n := real(t)
	k := script.KeysOf("k")
	raise := func(token string, to uint64) drivers.Reply {
		t.Helper()
		return send(t, n, raiseScript, raiseScript.Command([]string{k.Lock, k.Fence()}, token, fmt.Sprint(to)))
	}
	if r := raise("a", 5); r != int64(0) || len(s.Keys(t, "*")) != 0 {
		t.Errorf("without a lock: %v, and it left %q", r, s.Keys(t, "*"))
	}
	fence := acquire(t, n, "a", 10*time.Second)
	for _, step := range []struct {
		owner string
		to    uint64
		want  int64
		after uint64
	}{
		{"b", fence + 5, 0, fence}, // not the owner
		{"a", fence - 1, 0, fence},
		{"a", fence, 1, fence},
		{"a", fence + 5, 1, fence + 5},
		{"a", fence + 5, 1, fence + 5}, // delivered again
		{"a", fence + 4, 0, fence + 5},
	} {
		if r := raise(step.owner, step.to); r != step.want || s.Cmd(t, "GET", k.Fence()) != fmt.Sprint(step.after) {
			t.Errorf("%s raises to %d over %d: answered %v, counter %v; want %d, %d",
				step.owner, step.to, fence, r, s.Cmd(t, "GET", k.Fence()), step.want, step.after)
		}
	}
	if left := pttl(t, s, k.Fence()); left < script.CounterKeep-time.Minute {
		t.Errorf("the raised counter expires in %v", left)
	}
}

func TestReleaseCertifiesThatNoNewerTokenWasIssued(t *testing.T) {
	s, n := real(t)
	for _, newer := range []bool{false, true} {
		req := request("a")
		req.Fence = acquire(t, n, "a", 10*time.Second)
		if newer {
			s.Cmd(t, "SET", script.KeysOf("k").Fence(), req.Fence+1)
		}
		if err := n.Release(t.Context(), req); errors.Is(err, locker.ErrNotHeld) != newer {
			t.Errorf("a newer token was issued: %v; release says %v", newer, err)
		}
		if s.Cmd(t, "EXISTS", "k") != int64(0) {
			t.Error("the lock is still there")
		}
	}
}

// A Redlock's node that is reached by the number of another one says so to the owner of its lock, and does nothing but
// release.
func TestScriptsTellNodesApart(t *testing.T) {
	s, n := real(t)
	k := script.KeysOf("k")
	names := []string{k.Lock, k.Fence()}
	ask := func(sc *script.Source, keys []string, args ...string) drivers.Reply {
		return send(t, n, sc, sc.Command(keys, args...))
	}
	acquire := func(value, token string) drivers.Reply {
		return ask(acquireScript, []string{k.Lock, k.Fence(), k.Tombstone(token)}, value, "60000", "1", "0")
	}
	release := func(value, tomb string) drivers.Reply {
		return ask(releaseScript, []string{k.Lock, k.Tombstone("a"), k.Fence()}, value, tomb+":0:0:")
	}
	counter, _ := acquire("a|3", "a").(int64)
	if counter <= 0 {
		t.Fatal("not granted")
	}
	s.Cmd(t, "PEXPIRE", k.Lock, 30_000)
	for what, tt := range map[string]struct{ got, want drivers.Reply }{
		"acquire by another number":              {acquire("a|12", "a"), int64(-5)},
		"acquire by the same":                    {acquire("a|3", "a"), counter},
		"raise by another number":                {ask(raiseScript, names, "a|1", fmt.Sprint(uint64(counter)+7)), int64(3 * 32)},
		"extend by another number":               {ask(extendScript, names, "a|2", "60000", fmt.Sprint(uint64(counter))), int64(3 * 32)},
		"extend by an owner that begins alike":   {ask(extendScript, names, "a|3|2", "60000", fmt.Sprint(uint64(counter))), int64(4)},
		"extend by none":                         {ask(extendScript, names, "a", "60000", fmt.Sprint(uint64(counter))), int64(4)},
		"extend by another owner":                {ask(extendScript, names, "b|3", "60000", fmt.Sprint(uint64(counter))), int64(4)},
		"release by another owner":               {release("b|3", "0"), int64(4)},
		"clean-up by another number, once":       {release("a|1", "60000"), int64(0)},
		"clean-up by another number, once again": {release("a|1", "60000"), int64(0)},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %v, want %v", what, tt.got, tt.want)
		}
	}
	if f, left := s.Cmd(t, "GET", k.Fence()), pttl(t, s, k.Lock); f != fmt.Sprint(uint64(counter)) || left > 30*time.Second || s.Cmd(t, "GET", k.Lock) != "a|3" {
		t.Errorf("it has counter %v, was %d, and lives for %v", f, counter, left)
	}
	if r := release("a|1", "0"); r != int64(3*32+1) || s.Cmd(t, "EXISTS", k.Lock) != int64(0) {
		t.Errorf("release by another number: %v", r)
	}
	// The tombstone of the clean-up is the whole attempt's.
	if r := acquire("a|3", "a"); r != int64(-1) {
		t.Errorf("an attempt that was cleaned up under another number answers %v", r)
	}
	// A release that was executed under one number says so again to that one only.
	acquire("b|1", "b")
	gone := []string{k.Lock, k.Tombstone("b"), k.Fence()}
	for i, tt := range []struct {
		value string
		want  int64
	}{{"b|1", 1}, {"b|2", 0}} {
		if r := ask(releaseScript, gone, tt.value, "60000:0:0:"); r != tt.want {
			t.Errorf("release %d, by %s: %v, want %d", i, tt.value, r, tt.want)
		}
	}
}

// Attempts of those who decide alone have no number, also if another library's value looks as if it had.
func TestOwnersWithoutNumbersAreComparedWhole(t *testing.T) {
	s, n := real(t)
	s.Cmd(t, "SET", "k", "a|1", "PX", 60_000)
	if _, err := n.Acquire(t.Context(), locker.Request{Key: "k", Token: "a", TTL: time.Minute}); !errors.Is(err, locker.ErrHeld) {
		t.Error(err)
	}
	if err := n.Release(t.Context(), locker.Request{Key: "k", Token: "a", TTL: time.Minute}); !errors.Is(err, locker.ErrNotHeld) {
		t.Error(err)
	}
	if v := s.Cmd(t, "GET", "k"); v != "a|1" {
		t.Errorf("left is %v", v)
	}
}
