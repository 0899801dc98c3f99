// Package simnode is a Redis node that lives in the test's memory and clock. It executes the scripts of
// internal/redis/script, and knows the commands that these use. It is fast enough for a hundred thousand acquisitions,
// runs in virtual time, and can be given faults that no server has on demand. Tests in internal/redis/script compare it
// with a real server.
package simnode

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// Node is one node. It is safe for concurrent use; every client gets a driver of its own by [Node.Driver].
type Node struct {
	// Skew is added to the node's clock as its scripts see it.
	Skew time.Duration
	// Drift is by how much the node's clock is too fast: with 0.01 a TTL of a second is over after 990 ms. Set it
	// before the node is used.
	Drift float64
	// NoInfo says that scripts may not use INFO, which the restart guard needs.
	NoInfo bool
	// Observe, if not nil, is called after every execution of a script. It must not call the node. Set it before the
	// node is used.
	Observe func(Step)
	// Deliver, if not nil, decides whether a message to one subscriber is lost or late. A late message delays all later
	// messages on the same connection. The publisher still counts the subscriber. Set it before the node is used.
	Deliver func(channel, payload string) (late time.Duration, lost bool)

	mu          sync.Mutex
	origin      time.Time
	frozen      time.Time // the clock while a command is executed: a script sees one time. Zero: none is executed
	restarts    int
	slots       string // of a Cluster
	keys        map[string]entry
	scripts     map[string]program // by digest
	subscribers map[*feed]bool
	lines       map[string]names // the names that Observe is told of, by lock
	lua         *interpreter
	changes     map[string][]State // of locks, by the script that is executed; nil: nobody observes
}

// entry is a string, or one of the two halves of a queue.
type entry struct {
	value   string
	scores  map[string]int64  // a sorted set
	fields  map[string]string // a hash
	expires time.Time         // zero: never
}

// New returns an empty node that knows the lock scripts.
func New() *Node {
	return &Node{
		origin: time.Now(), keys: map[string]entry{}, scripts: maps.Clone(shipped()), subscribers: map[*feed]bool{},
	}
}

// now is the time by the node's clock, but for Skew.
func (n *Node) now() time.Time {
	if !n.frozen.IsZero() {
		return n.frozen
	}
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
		if wire.IsLock(key) && f(key) {
			delete(n.keys, key)
		}
	}
}

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

// Take acquires a lock as another library does, by SET NX PX, and reports whether the key was free.
func (n *Node) Take(key, value string, ttl time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, taken := n.get(key)
	if !taken {
		n.keys[key] = entry{value: value, expires: n.in(ttl.Milliseconds())}
	}
	return !taken
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

// Fields returns the names of the fields of a hash.
func (n *Node) Fields(key string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, _ := n.get(key)
	return slices.Collect(maps.Keys(e.fields))
}

// Left returns the keys that should not be there when nobody holds a lock or waits for one; see [wire.Left].
func (n *Node) Left() []string { return wire.Left(n.Keys(), n.Fields) }

// Tombstones counts the tombstones. Some of them may be over.
func (n *Node) Tombstones() int { return wire.Tombstones(n.Keys(), n.Fields) }

// Execute runs one command that a client sends: a call of a script, PING, PUBLISH or SPUBLISH. It refuses INFO, as a
// server refuses a user without the right.
func (n *Node) Execute(cmd drivers.Command) drivers.Reply {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = n.now()
	defer func() { n.frozen = time.Time{} }()
	switch cmd[0] {
	case "INFO":
		return drivers.ServerError("NOPERM this node is simulated")
	case "PING":
		return "PONG"
	case "PUBLISH", "SPUBLISH":
		return n.publish(cmd[1], cmd[2])
	case "EVAL", "EVALSHA":
	default:
		return drivers.ServerError("ERR unknown command")
	}
	count, _ := strconv.Atoi(cmd[2])
	return n.script(cmd, cmd[3:3+count], cmd[3+count:])
}

// script executes a call of a script.
func (n *Node) script(cmd drivers.Command, keys, args []string) drivers.Reply {
	p, known := n.scripts[cmd[1]]
	if cmd[0] == "EVAL" {
		var digest string
		digest, p = load(cmd[1])
		n.scripts[digest], known = p, true
	}
	if !known {
		return drivers.ServerError("NOSCRIPT No matching script. Please use EVAL.")
	}
	return n.observed(cmd, keys, func() drivers.Reply { return n.eval(p, keys, args) })
}

// Restart is a restart that keeps all data, but no scripts. With [Node.Flush], it is one that keeps nothing.
func (n *Node) Restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.restarts++
	clear(n.scripts)
}

// incarnation is the ID of the node's history.
func (n *Node) incarnation() string { return strconv.Itoa(n.restarts) }

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
