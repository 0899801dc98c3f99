package script_test

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/wire"
)

// queue is one lock on a real server, and those who wait for it.
type queue struct {
	t testing.TB
	s *redistest.Server
	n *server
	k script.Keys

	asked *time.Time // ahead of the last question: what the server counts has gone on since then, or since later
}

func newQueue(t testing.TB) queue {
	s, n := real(t)
	return queue{t, s, n, script.KeysOf("", "k"), new(time.Time)}
}

// As the arguments of enqueue.lua: 10 s TTL, the longest lease, no ticket, one token, no channel.
const usualArgs = "10000:6000:0:1:"

func (x queue) enqueue(o, args string) []drivers.Reply {
	x.t.Helper()
	*x.asked = time.Now()
	reply := send(x.t, x.n, enqueueScript, enqueueScript.Command(
		queueKeys(x.k), text(o), args))
	if c, ok := reply.(int64); ok && c > 0 { // granted for the TTL
		ttl, _, _ := strings.Cut(args, ":")
		ms, _ := strconv.ParseInt(ttl, 10, 64)
		return []drivers.Reply{int64(1), c, ms}
	}
	return x.array(reply)
}

func (x queue) claim(o, ttl string) []drivers.Reply {
	x.t.Helper()
	*x.asked = time.Now()
	return x.array(send(x.t, x.n, claimScript, claimScript.Command(
		[]string{x.k.Lock}, text(o), ttl)))
}

func (x queue) release(o, args string) drivers.Reply {
	x.t.Helper()
	*x.asked = time.Now()
	return send(x.t, x.n, handoverScript, handoverScript.Command(
		queueKeys(x.k), text(o), undoing(args)))
}

func (x queue) leave(o string) drivers.Reply {
	x.t.Helper()
	return x.release(o, "10000:0:0")
}

func (x queue) extend(o string, token int64) drivers.Reply {
	x.t.Helper()
	return send(x.t, x.n, extendScript, extendScript.Command(ownedKeys(x.k), text(o), "10000",
		script.CounterText(uint64(token))))
}

func (x queue) array(reply drivers.Reply) []drivers.Reply {
	x.t.Helper()
	a, ok := reply.([]drivers.Reply)
	if !ok {
		x.t.Fatalf("the script answers %v", reply)
	}
	return a
}

// granted checks that reply grants the lock to o with at least from and at most to left, and returns the token.
func (x queue) granted(o string, reply []drivers.Reply, from, to time.Duration) int64 {
	x.t.Helper()
	if len(reply) != 3 || reply[0] != int64(1) {
		x.t.Fatalf("%s got %v, want a grant", o, reply)
	}
	if left := time.Duration(reply[2].(int64)) * time.Millisecond; left < from || left > to {
		x.t.Errorf("%s was granted the lock for %v, want %v to %v", o, left, from, to)
	} else {
		x.lives(x.k.Lock, left)
	}
	x.held(o)
	if got, _ := counterOf(x.t, x.s, x.k.Lock); int64(got) != reply[1] {
		x.t.Errorf("%s has the token %v, the lock has %v", o, reply[1], got)
	}
	return reply[1].(int64)
}

// lives checks that key expires in d since the last question.
func (x queue) lives(key string, d time.Duration) {
	x.t.Helper()
	const clocks = 50 * time.Millisecond // of two kinds, and the server's is read in whole ms
	left := x.s.PTTL(x.t, key)
	if gone := time.Since(*x.asked); left > d || left < d-gone-clocks {
		x.t.Errorf("%s expires in %v, want %v, of which %v are gone at most", key, left, d, gone)
	}
}

// waits checks that reply makes o wait at rank, and returns its ticket.
func (x queue) waits(o string, reply []drivers.Reply, rank int) int64 {
	x.t.Helper()
	if len(reply) < 5 || reply[0] != int64(0) || reply[2] != int64(rank) {
		x.t.Fatalf("%s got %v, want rank %d", o, reply, rank)
	}
	return reply[4].(int64)
}

// held checks who holds the lock, "" for nobody.
func (x queue) held(by string) {
	x.t.Helper()
	if _, got := counterOf(x.t, x.s, x.k.Lock); got != by {
		x.t.Errorf("the lock is %q's, want %q's", got, by)
	}
}

// value checks the whole value of the lock.
func (x queue) value(want string) {
	x.t.Helper()
	if got, _ := x.s.Cmd(x.t, "GET", x.k.Lock).(string); got != want {
		x.t.Errorf("the value is %q, want %q", got, want)
	}
}

// waiting checks who waits, the first first. The queue and what is known of the waiters must agree, and not live for
// ever.
func (x queue) waiting(want ...string) {
	x.t.Helper()
	got := x.strings(x.s.Cmd(x.t, "ZRANGE", x.k.Queue(), 0, -1))
	if strings.Join(got, " ") != strings.Join(want, " ") {
		x.t.Errorf("%q wait, want %q", got, want)
	}
	if n := len(x.s.Fields(x.t, x.k.Wait())) - x.tombstones(); n != len(got) {
		x.t.Errorf("%v waiters are known, %d are in the queue", n, len(got))
	}
	for key, most := range map[string]time.Duration{x.k.Queue(): 2 * script.MaxPositionTTL, x.k.Wait(): tombstoneLife} {
		if left := x.s.PTTL(x.t, key); len(want) > 0 && (left <= 0 || left > most) {
			x.t.Errorf("%s expires in %v", key, left)
		}
	}
}

func (x queue) tombstones() int {
	x.t.Helper()
	return wire.Tombstones([]string{x.k.Wait()}, func(key string) []string { return x.s.Fields(x.t, key) })
}

// exhume removes the tombstone of o.
func (x queue) exhume(o string) {
	x.t.Helper()
	x.s.Cmd(x.t, "HDEL", x.k.Wait(), "!"+o)
}

func (x queue) strings(reply any) (list []string) {
	for _, v := range reply.([]any) {
		list = append(list, v.(string))
	}
	return list
}

// passes waits until some time has passed by the server's clock, which is not ours.
func (x queue) passes(d time.Duration) {
	x.t.Helper()
	now := func() time.Duration {
		t := x.strings(x.s.Cmd(x.t, "TIME"))
		s, _ := strconv.ParseInt(t[0], 10, 64)
		us, _ := strconv.ParseInt(t[1], 10, 64)
		return time.Duration(s)*time.Second + time.Duration(us)*time.Microsecond
	}
	hung := time.Now().Add(10 * time.Second)
	for end := now() + d; now() < end; {
		if time.Now().After(hung) {
			x.t.Fatal("the server's clock stands still")
		}
	}
}

// is checks one reply.
func (x queue) is(what string, got, want drivers.Reply) {
	x.t.Helper()
	if !reflect.DeepEqual(got, want) {
		x.t.Errorf("%s answers %v, want %v", what, got, want)
	}
}

// ear hears what is published on channels.
type ear struct {
	t    *testing.T
	conn redis.PubSubConn
}

func listen(t *testing.T, s *redistest.Server, channels ...any) *ear {
	t.Helper()
	conn, err := redis.Dial("unix", s.Socket(), redis.DialReadTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	e := &ear{t, redis.PubSubConn{Conn: conn}}
	if err := e.conn.Subscribe(channels...); err != nil {
		t.Fatal(err)
	}
	e.heard()
	return e
}

// heard returns what was heard since it was last asked, as "channel payload".
func (e *ear) heard() (messages []string) {
	e.t.Helper()
	if err := e.conn.Ping(""); err != nil {
		e.t.Fatal(err)
	}
	for {
		switch m := e.conn.Receive().(type) {
		case redis.Message:
			messages = append(messages, m.Channel+" "+string(m.Data))
		case redis.Pong:
			return messages
		case error:
			e.t.Fatal(m)
		}
	}
}

func (e *ear) hears(want ...string) {
	e.t.Helper()
	if got := e.heard(); strings.Join(got, "|") != strings.Join(want, "|") {
		e.t.Errorf("heard %q, want %q", got, want)
	}
}
