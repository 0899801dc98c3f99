package script_test

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var (
	acquireScript, raiseScript, extendScript   = script.AcquireScript, script.RaiseScript, script.ExtendScript
	enqueueScript, claimScript, handoverScript = script.EnqueueScript, script.ClaimScript, script.HandoverScript
	turnScript, turnReleaseScript              = script.TurnScript, script.TurnReleaseScript
	releaseScript, inspectScript, forceScript  = script.ReleaseScript, script.InspectScript, script.ForceScript
	verifyScript                               = script.VerifyScript
	exportScript, resumeScript                 = script.ExportScript, script.ResumeScript
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
func real(t testing.TB, args ...string) (*redistest.Server, *server) {
	t.Helper()
	s := redistest.Start(t, args...)
	return s, reach(t, s, func() (redis.Conn, error) { return redis.Dial("tcp", s.Addr()) })
}

func reach(t testing.TB, s *redistest.Server, dial func() (redis.Conn, error)) *server {
	pool := &redis.Pool{MaxIdle: 4, Dial: dial}
	d := redigodriver.New(pool)
	n := node.New(d, node.Options{Name: s.Addr(), Timeout: timeout})
	t.Cleanup(func() {
		_ = n.Close()
		_ = pool.Close()
	})
	return &server{n, d}
}

// inTime runs f, in which something on the server ends after limit. If f takes longer, because the machine is busy or
// stands still, its findings do not count, and it is run again.
func inTime(t *testing.T, limit time.Duration, f func(t testing.TB)) {
	t.Helper()
	for range 20 {
		found, done, start := &findings{TB: t}, make(chan struct{}), time.Now()
		go func() { // Fatal ends it
			defer close(done)
			f(found)
		}()
		<-done
		if len(found.texts) == 0 {
			return
		}
		if time.Since(start) < limit {
			t.Fatal(strings.Join(found.texts, "\n"))
		}
	}
	t.Fatalf("it takes more than %v each time", limit)
}

// findings are those of a try of inTime, whose goroutine alone reports them.
type findings struct {
	testing.TB
	texts []string
}

func (f *findings) Errorf(format string, args ...any) {
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}
func (f *findings) Error(args ...any) { f.texts = append(f.texts, fmt.Sprint(args...)) }

func (f *findings) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

func (f *findings) Fatal(args ...any) {
	f.Error(args...)
	runtime.Goexit()
}

// Acquire makes one attempt without the queue, as a node of a Redlock is asked to.
func (s *server) Acquire(_ context.Context, req backend.Request) (backend.Grant, error) {
	ready := make(chan *node.Call, 1)
	s.StartAcquire(new(node.Call), ready, 0, &req, node.CounterOptions{Quantum: 1})
	v := (<-ready).Vote()
	return backend.Grant{Fence: v.Counter}, v.Err
}

func request(token string) backend.Request {
	return backend.Request{Key: "k", Token: token, TTL: 10 * time.Second}
}

func acquire(t testing.TB, n *server, token string, ttl time.Duration) uint64 {
	t.Helper()
	g, err := n.Acquire(t.Context(), backend.Request{Key: "k", Token: token, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return g.Fence
}

// send runs one script as it stands, without the node's care for unknown outcomes.
func send(t testing.TB, n *server, script *script.Source, cmd drivers.Command) drivers.Reply {
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

// Keys of calls, in the order of the scripts.
func acquireKeys(k script.Keys) []string { return []string{k.Lock, k.Wait(), k.Fence()} }
func ownedKeys(k script.Keys) []string   { return []string{k.Lock, k.Fence()} }
func releaseKeys(k script.Keys) []string { return []string{k.Lock, k.Wait()} }
func queueKeys(k script.Keys) []string   { return []string{k.Lock, k.Wait(), k.Fence(), k.Queue()} }
func turnKeys(k script.Keys) []string    { return []string{k.Lock, k.Wait(), k.Queue(), k.Turn()} }

// text is what a call says of its owner: of "a" that it decides alone, or with "a|2|label" the number of the node and
// the label.
func text(o string) string {
	p := append(strings.SplitN(o, "|", 3), "", "")
	return "|" + p[0] + "|" + cmp.Or(p[1], "1") + "|" + p[2]
}

// undoing are the arguments of a release: "tomb:rest:token", and what comes after. Token 0 is not compared.
func undoing(args string) string {
	p := strings.SplitN(args, ":", 4)
	n, _ := strconv.ParseUint(p[2], 10, 64)
	p[2] = script.CounterText(n)
	if n == 0 {
		p[2] = script.AnyCounter
	}
	return strings.Join(p, ":")
}

// counterOf returns the counter in the value of a lock, and its owner.
func counterOf(t testing.TB, s *redistest.Server, lock string) (counter uint64, owner string) {
	t.Helper()
	value, _ := s.Cmd(t, "GET", lock).(string)
	v, ours := script.ReadValue(value)
	if !ours {
		return 0, value
	}
	return v.Counter, v.Token
}

// put makes owner have the lock k with a counter.
func put(t testing.TB, s *redistest.Server, owner string, counter uint64) {
	t.Helper()
	s.Cmd(t, "SET", "k", script.CounterText(counter)+text(owner), "PX", 10000)
}

// acquireCommand is an attempt on k with its counter after quantum and hint.
func acquireCommand(token string, quantum, hint uint64) drivers.Command {
	return acquireScript.Command(acquireKeys(script.KeysOf("", "k")),
		text(token), "10000", fmt.Sprint(quantum), fmt.Sprint(hint))
}

func releaseCommand(token string, landed bool) drivers.Command {
	r := script.Release{
		Attempt:   script.Attempt{Keys: script.KeysOf("", "k"), Token: token, Node: 1},
		Tombstone: 10*time.Second + tombstoneLife,
	}
	if landed {
		r.Tombstone = 0
		return r.Command().Usual.Alone().Words
	}
	return r.Command().Words
}

// acquired reads the answer to an attempt.
func acquired(t testing.TB, reply drivers.Reply) script.Acquired {
	t.Helper()
	a, err := script.ReadAcquired(reply)
	if err != nil {
		t.Error(err)
	}
	return a
}
