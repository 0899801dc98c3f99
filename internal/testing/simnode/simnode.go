// Package simnode is a Redis node that lives in the test's memory and clock: a Go twin of the lock scripts behind the
// driver contract. It is fast enough for a hundred thousand acquisitions, runs in virtual time, and can be given faults
// that no server has on demand. A differential test in internal/script keeps it equal to the scripts on a real server.
package simnode

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

// Node is one node. It is safe for concurrent use; every client gets a driver of its own by [Node.Driver].
type Node struct {
	// Skew is added to the node's clock as its scripts see it.
	Skew time.Duration
	// Drift is by how much the node's clock is too fast: with 0.01 a TTL of a second is over after 990 ms. Set it
	// before the node is used.
	Drift float64
	// Observe, if not nil, is called after every execution of a script. It must not call the node. Set it before the
	// node is used.
	Observe func(Step)
	// Deliver, if not nil, decides whether a message to one subscriber is lost or late. A late message delays all later
	// messages on the same connection. The publisher still counts the subscriber. Set it before the node is used.
	Deliver func(channel, payload string) (late time.Duration, lost bool)

	mu          sync.Mutex
	origin      time.Time
	keys        map[string]entry
	subscribers map[*feed]bool
}

// entry is a string, or one of the two halves of a queue.
type entry struct {
	value   string
	scores  map[string]int64  // a sorted set
	fields  map[string]string // a hash
	expires time.Time         // zero: never
}

// New returns an empty node.
func New() *Node {
	return &Node{origin: time.Now(), keys: map[string]entry{}, subscribers: map[*feed]bool{}}
}

// now is the time by the node's clock, but for Skew.
func (n *Node) now() time.Time {
	now := time.Now()
	return now.Add(time.Duration(n.Drift * float64(now.Sub(n.origin))))
}

// Flush deletes everything, like a restart without persistence.
func (n *Node) Flush() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.keys)
}

// Expire deletes the lock keys for which f is true. The other keys of a lock stay.
func (n *Node) Expire(f func(key string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key := range n.keys {
		if !derived.MatchString(key) && f(key) {
			delete(n.keys, key)
		}
	}
}

// derived are the names of what belongs to a lock.
var derived = regexp.MustCompile(`:gone:|:(fence|lockqueue|lockwaiters|lockturn)(:[ts])?$`)

// Foreign puts a value under key that is no lock, for it never expires. intact reports whether it is still there.
func (n *Node) Foreign(key string) (intact func() bool) {
	foreign := entry{value: "somebody's"}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys[key] = foreign
	return func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		e := n.keys[key]
		return e.value == foreign.value && e.expires.IsZero()
	}
}

// Delete deletes keys, of whatever kind.
func (n *Node) Delete(keys ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range keys {
		delete(n.keys, key)
	}
}

// Put stores something that is no lock: a value without an expiry.
func (n *Node) Put(key, value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys[key] = entry{value: value}
}

// Keys returns the keys that have not expired.
func (n *Node) Keys() (keys []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key := range n.keys {
		if _, ok := n.get(key); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// Left returns the keys that should not be there when nobody holds a lock or waits for one: all but [Stays].
func (n *Node) Left() []string { return slices.DeleteFunc(n.Keys(), Stays) }

// Stays reports whether key may stay when its lock is gone: it is a counter, or the tombstone of an attempt.
func Stays(key string) bool { return stays.MatchString(key) }

var stays = regexp.MustCompile(`:gone:|:fence(:[ts])?$`)

// Execute runs one command. It knows the lock scripts, by the shape of their call, so that it needs nothing of the
// package it is a twin for, PING, PUBLISH, and INFO, which it refuses as a user without the right would be.
func (n *Node) Execute(cmd drivers.Command) drivers.Reply {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch cmd[0] {
	case "INFO":
		return drivers.ServerError("NOPERM this node is simulated")
	case "PING":
		return "PONG"
	case "PUBLISH":
		return n.publish(cmd[1], cmd[2])
	case "EVAL", "EVALSHA":
	default:
		return drivers.ServerError("ERR unknown command")
	}
	count, _ := strconv.Atoi(cmd[2])
	k, args := cmd[3:3+count], cmd[3+count:]
	if reply, ok := n.operators(k, args); ok {
		return reply
	}
	if n.Observe == nil {
		_, reply := n.script(k, args)
		return reply
	}
	return n.observed(k, args)
}

// script executes the script that has this shape of call, and says which.
func (n *Node) script(k, args []string) (name string, reply drivers.Reply) {
	switch packed := strings.Count(args[len(args)-1], ":"); [2]int{len(k), len(args)} {
	case [2]int{3, 4}:
		return "acquire", n.acquire(k, args)
	case [2]int{2, 2}:
		return "raise", n.raise(k, args)
	case [2]int{2, 3}:
		return "extend", n.extend(k, args)
	case [2]int{3, 2}:
		return "release", n.release(k, args)
	case [2]int{5, 2}:
		if packed >= 3 {
			return "enqueue", n.enqueue(line{n, k[0], k[1], k[3], k[4], ""}, k[2], args)
		}
		return "handover", n.handover(line{n, k[0], k[2], k[3], k[4], ""}, k[1], args)
	case [2]int{4, 2}:
		return "turn", n.turn(line{n, k[0], "", k[2], k[3], k[1]}, args)
	case [2]int{2, 1}:
		return "claim", n.claim(line{Node: n, lock: k[0], fence: k[1]}, args[0])
	case [2]int{6, 1}:
		return "turnrelease", n.turnRelease(line{n, k[0], k[2], k[4], k[5], k[3]}, k[1], args)
	}
	return "", drivers.ServerError("ERR unknown script")
}

func (n *Node) get(key string) (entry, bool) {
	e, ok := n.keys[key]
	if ok && !e.expires.IsZero() && !n.now().Before(e.expires) {
		delete(n.keys, key)
		return entry{}, false
	}
	return e, ok
}

func (n *Node) counter(key string) int64 {
	e, _ := n.get(key)
	return number(e.value)
}

func number(s string) int64 {
	i, _ := strconv.ParseInt(s, 10, 64)
	return i
}

func (n *Node) after(ms string) time.Time { return n.in(number(ms)) }

func (n *Node) in(ms int64) time.Time { return n.now().Add(time.Duration(ms) * time.Millisecond) }

// left is the remaining time of a key, in ms.
func (n *Node) left(e entry) int64 { return e.expires.Sub(n.now()).Milliseconds() }

// keep is how long a counter outlives its use.
const keep = 24 * time.Hour

// setCounter stores a counter that does not expire before the clock has passed it.
func (n *Node) setCounter(key string, c int64) {
	now := n.now().Add(n.Skew).UnixMicro()
	ahead := time.Duration(max(0, c-now)) * time.Microsecond
	n.keys[key] = entry{value: strconv.FormatInt(c, 10), expires: n.now().Add(keep + ahead)}
}

func (n *Node) acquire(keys, args []string) drivers.Reply {
	cur, held := n.get(keys[0])
	f := n.counter(keys[1])
	if held && cur.value != args[0] {
		if cur.expires.IsZero() {
			return int64(-2)
		}
		if k := alias(cur.value, args[0]); k > 0 {
			return -2 - k
		}
		return []drivers.Reply{int64(0), n.left(cur), f, cur.value[:min(8, len(cur.value))]}
	}
	if held && f > 0 {
		return f
	}
	if _, gone := n.get(keys[2]); gone {
		return int64(-1)
	}
	now := n.now().Add(n.Skew).UnixMicro()
	hint := number(args[3])
	if hint > now+time.Hour.Microseconds() {
		hint = 0
	}
	c := max(f+1, now-now%number(args[2]), hint+1)
	n.setCounter(keys[1], c)
	n.keys[keys[0]] = entry{value: args[0], expires: n.after(args[1])}
	return c
}

func (n *Node) raise(keys, args []string) drivers.Reply {
	if cur, _ := n.get(keys[0]); cur.value != args[0] {
		return 32 * alias(cur.value, args[0])
	}
	f, token := n.counter(keys[1]), number(args[1])
	if f > token {
		return int64(0)
	}
	if f < token {
		n.setCounter(keys[1], token)
	}
	return int64(1)
}

func (n *Node) extend(keys, args []string) drivers.Reply {
	cur, _ := n.get(keys[0])
	if cur.value != args[0] {
		if k := alias(cur.value, args[0]); k > 0 {
			return 32 * k
		}
		if cur.value != "" && cur.value != "hold:"+args[0] {
			return int64(4)
		}
		return int64(0)
	}
	f, token := n.counter(keys[1]), number(args[2])
	if f > token {
		return int64(3)
	}
	if f < token {
		n.setCounter(keys[1], token)
	}
	if e, end := n.keys[keys[1]], n.now().Add(keep); e.expires.Before(end) {
		n.keys[keys[1]] = entry{value: e.value, expires: end}
	}
	if cur.expires.Before(n.after(args[1])) {
		n.keys[keys[0]] = entry{value: cur.value, expires: n.after(args[1])}
	}
	return int64(1)
}

func (n *Node) release(keys, args []string) drivers.Reply {
	p := strings.SplitN(args[1], ":", 4)
	tomb, rest, token, channel := p[0], p[1], p[2], p[3]
	r := n.undo(keys[0], keys[1], keys[2], args[0], tomb, rest, token)
	if channel != "" && rest == "0" && (r == 1 || r == 3) {
		n.publish(channel, "free")
	}
	return r
}

func (n *Node) undo(lock, gone, fence, owner, tomb, rest, token string) int64 {
	r, k := int64(0), int64(0)
	mark, _ := n.get(gone)
	cur, held := n.get(lock)
	if held {
		k = alias(cur.value, owner)
	}
	if held && cur.value == owner || k > 0 && tomb == "0" {
		delete(n.keys, lock)
		r = 1
		if token != "0" && n.counter(fence) > number(token) {
			r = 3
		}
		if rest != "0" {
			n.keys[lock] = entry{value: "hold:" + owner, expires: n.after(rest)}
		}
		r += 32 * k
	} else if k == 0 && (held && cur.value != "hold:"+owner || !held && mark.value == "f") {
		r = 4
	}
	if tomb != "0" {
		_, number, numbered := strings.Cut(owner, "|")
		deleted := "d"
		if numbered {
			deleted += "|" + number
		}
		if r%4 == 0 && mark.value == deleted {
			return 2
		}
		left := "x"
		if r == 1 {
			left = deleted
		}
		n.keys[gone] = entry{value: left, expires: n.after(tomb)}
	}
	return r
}

// alias returns the number of the node under which the owner has the lock, if it differs from the number of this node,
// or 0.
func alias(value, owner string) int64 {
	i := strings.LastIndexByte(owner, '|')
	if i < 0 || value == owner || !strings.HasPrefix(value, owner[:i+1]) {
		return 0
	}
	return number(value[i+1:])
}
