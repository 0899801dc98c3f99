package script

import "time"

// Guard is the restart guard of the clients of a node. A command with it grants a lock only if the node does not rest;
// see guard.lua.
type Guard struct {
	prefix string
	marker string // of all slots
	rest   string // how long the node rests, in ms
	slots  func() bool
}

// guardReserve is how much longer a node rests than the longest TTL and 2 % of it. It covers the granularity of expiry,
// and, for tokens, clocks of nodes that differ.
const guardReserve = 2 * time.Second

// NewGuard returns the guard of clients with that prefix, whose locks live for at most maxTTL. slots reports whether
// the node keeps hash slots apart, so that a command may use one slot only. Each slot then has a marker of its own.
// Otherwise all locks of the prefix share one.
func NewGuard(prefix string, maxTTL time.Duration, slots func() bool) *Guard {
	return &Guard{prefix, marker(prefix, 0), milliseconds(maxTTL + (maxTTL+49)/50 + guardReserve), slots}
}

// MaxTTLOf returns the longest TTL of clients whose nodes rest for that long.
func MaxTTLOf(rest time.Duration) time.Duration {
	return ((rest - guardReserve) * 50 / 51).Truncate(time.Millisecond)
}

// guardName is the end of the name of each marker.
const guardName = "guard"

func marker(prefix string, slot uint16) string { return inSlot(slot, prefix, guardName) }

// Touch begins the node's rest, if it has to rest and does not yet. [ReadTouched] reads the reply.
func (g *Guard) Touch() Command { return touchScript.call([]string{g.marker}, g.rest) }

// Trust ends the node's rest: what the node has forgotten, if anything, does not count. If the node keeps slots apart,
// that is for the locks of one slot; otherwise slot is ignored. [ReadTouched] reads the reply.
func (g *Guard) Trust(slot uint16) Command {
	key := g.marker
	if g.slots() {
		key = marker(g.prefix, slot)
	}
	return touchScript.call([]string{key}, g.rest, "new")
}

// keys adds the marker to the keys of a command, of which the first is a lock. A nil Guard adds nothing.
func (g *Guard) keys(keys ...string) []string {
	if g == nil {
		return keys
	}
	return append(keys, g.of(keys[0]))
}

// of returns the marker for a lock.
func (g *Guard) of(lock string) string {
	if g.slots() {
		return marker(g.prefix, Slot(lock))
	}
	return g.marker
}

// number is the guard after the other numbers in an argument. A nil Guard adds nothing.
func (g *Guard) number() string {
	if g == nil {
		return ""
	}
	return ":" + g.rest
}
