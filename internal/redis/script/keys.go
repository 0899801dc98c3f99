package script

import (
	"strconv"
	"strings"
	"sync"

	"github.com/golocker/locker/drivers"
)

// Keys are the names that one lock uses on a node. The key of the lock itself has the lock's name, verbatim. So the
// lock excludes programs that use another library's SET NX PX on the same key. All other names have the same hash slot,
// because a script on Redis Cluster may use one slot only.
type Keys struct {
	Lock   string
	prefix string
}

// The parts of the names of what a lock has for itself.
const (
	waitName  = ":lockwait"
	queueName = ":lockqueue"
	turnName  = ":lockturn"
	// A name of its own tells scripts and tests that a command is about a group.
	entriesName = ":lockentries"
)

// The suffix of such a name says how it was derived. So no two locks share a queue, although "a" and "{a}" have the
// same tag.
const (
	plainKind = ""
	tagKind   = ":t"
	slotKind  = ":s"
)

// KeysOf returns the names of the lock of key, under the prefix of its clients.
func KeysOf(prefix, key string) Keys { return Keys{Lock: prefix + key, prefix: prefix} }

// own returns the name of what the lock has for itself.
func (k Keys) own(what string) string {
	switch {
	case hasTag(k.Lock): // the name contains its tag
		return k.Lock + what + tagKind
	case !strings.ContainsRune(k.Lock, '}'):
		return "{" + k.Lock + "}" + what + plainKind
	default:
		// The lock's name contains a brace, so it cannot be a tag itself. Use a tag of the same slot.
		return inSlot(Slot(k.Lock), k.Lock, what+slotKind)
	}
}

// fenceName is the end of the name of each fencing counter.
const fenceName = "fence"

// Fence is the key of the fencing counter. All locks of a prefix whose keys have the same hash slot share it, so there
// are at most as many counters as slots, and they need not expire.
func (k Keys) Fence() string { return inSlot(Slot(k.Lock), k.prefix, fenceName) }

// Wait is the key of a hash with the data of each waiter, and with tombstones. It exists only while there are any.
func (k Keys) Wait() string { return k.own(waitName) }

// Queue is the key of the queue: a sorted set of the waiters by the time of their arrival.
func (k Keys) Queue() string { return k.own(queueName) }

// Entries is the key of a hash with the data of each entry, if the lock is a group; see groupentry.lua.
func (k Keys) Entries() string { return k.own(entriesName) }

// What ends the name of a group, after its key and a sign; see packages semaphore and rwlock.
const (
	permits = "permits"
	locks   = "rw"
)

// places returns the names of locks that programs have which make a lock of each place of the group k: those of the
// gates, and the first place. It returns none if they cannot be told from the name of the group, or have another slot.
func (k Keys) places(ofLocks bool) []string {
	of, begin, names := permits, "", []string{"gate", "0"}
	if ofLocks {
		of, begin, names = locks, locks, []string{"gate", "intent", "0"}
	}
	for _, sign := range []string{"#", "#:"} {
		if at := strings.LastIndex(k.Lock, sign+of); at >= len(k.prefix) {
			at += len(sign)
			front, back := k.Lock[:at]+begin, k.Lock[at+len(of):]
			if Slot(front+names[0]+back) != Slot(k.Lock) {
				continue
			}
			for i := range names {
				names[i] = front + names[i] + back
			}
			return names
		}
	}
	return nil
}

// Turn is the key with the waiter whose turn it is to ask the nodes of a Redlock.
func (k Keys) Turn() string { return k.own(turnName) }

// sharded ends the names of sharded channels, and of no others; see publish.lua.
const sharded = ":sharded"

// Inbox returns the channel of one client, which id identifies, for the locks of a prefix.
func Inbox(prefix, id string) string { return prefix + "inbox:" + id }

// ShardedInbox is Inbox for the locks of one hash slot of a Redis Cluster.
func ShardedInbox(prefix, id string, slot uint16) string {
	return inSlot(slot, Inbox(prefix, id), sharded)
}

// Publish returns the command that publishes on a channel.
func Publish(channel, payload string) Command {
	name := "PUBLISH"
	if strings.HasSuffix(channel, sharded) {
		name = "SPUBLISH"
	}
	return Command{Words: drivers.Command{name, channel, payload}}
}

// Reserved returns why key must not be locked under the prefix: the key of its lock may be one that belongs to other
// locks of the prefix. It returns an empty string if key may be locked.
func Reserved(prefix, key string) (why string) {
	lock := prefix + key
	if !hasTag(lock) {
		return ""
	}
	switch own := "{" + tag(lock) + "}}" + prefix; lock {
	case own + fenceName:
		return "keys with the name of a fencing counter are reserved"
	case own + guardName:
		return "keys with the name of a marker of the restart guard are reserved"
	}
	for _, kind := range []string{plainKind, tagKind, slotKind} {
		for _, what := range []string{waitName, queueName, turnName, entriesName} {
			if strings.HasSuffix(lock, what+kind) {
				return "keys with a {hash tag} that end in \"" + what + kind + "\" are reserved for what belongs to a lock"
			}
		}
	}
	return ""
}

// hasTag reports whether Redis Cluster hashes only a part of key: the text between the first { and the next }, if it is
// not empty.
func hasTag(key string) bool { return tag(key) != key }

func tag(key string) string {
	_, after, found := strings.Cut(key, "{")
	if !found {
		return key
	}
	t, _, found := strings.Cut(after, "}")
	if !found || t == "" {
		return key
	}
	return t
}

// Slots is the number of hash slots of a Redis Cluster.
const Slots = 16384

// Slot returns the hash slot of key: the CRC16 (XMODEM) of its tag, modulo 16384 (Redis Cluster specification).
func Slot(key string) uint16 {
	var crc uint16
	for _, b := range []byte(tag(key)) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^b]
	}
	return crc % Slots
}

// crcTable has the CRC16 of each byte.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// inSlot returns a name, in two parts, with a short tag that hashes to slot s.
func inSlot(s uint16, name, end string) string {
	var digits [10]byte
	return "{" + string(strconv.AppendUint(digits[:0], uint64(tags()[s]), 10)) + "}}" + name + end
}

// tags has a number for each slot whose decimal text hashes to that slot. To find all of them takes some milliseconds,
// so it is done when the first one is needed.
var tags = sync.OnceValue(func() *[Slots]uint32 {
	var numbers [Slots]uint32
	var known [Slots]bool
	for i, missing := uint32(0), Slots; missing > 0; i++ {
		if s := Slot(strconv.FormatUint(uint64(i), 10)); !known[s] {
			numbers[s], known[s] = i, true
			missing--
		}
	}
	return &numbers
})
