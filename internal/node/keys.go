package node

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/golocker/locker"
)

// keys are the names one lock uses on a node. The lock itself is prefix+key, verbatim, so that with an empty prefix
// it excludes programs that use another library's SET NX PX on the same key. Everything else is derived from that
// and shares its hash slot, because a script may touch one slot only on Redis Cluster.
type keys struct {
	lock, fence, gone string // gone is the tombstones' name, without the attempt's token

	base, kind string // derived names are base + what + kind
}

// What is derived, besides tombstones.
const (
	fenceName   = ":fence"
	queueName   = ":lockqueue"
	waitersName = ":lockwaiters"
	turnName    = ":lockturn"
	goneName    = ":gone:"
)

// Each way to derive has a suffix of its own, so that no two locks share a counter: "a" and "{a}" have the same tag.
const (
	plainKind = ""
	tagKind   = ":t"
	slotKind  = ":s"
)

func keysOf(lock string) keys {
	k := keys{lock: lock}
	switch {
	case hasTag(lock): // its own tag decides the slot, in derived names too
		k.base, k.kind = lock, tagKind
	case !strings.ContainsRune(lock, '}'):
		k.base, k.kind = "{"+lock+"}", plainKind
	default:
		// A tag cannot contain a brace, so this name cannot be its own tag: take some tag of the same slot.
		k.base, k.kind = "{"+tagOf(slot(lock))+"}}"+lock, slotKind
	}
	k.fence, k.gone = k.base+fenceName+k.kind, k.base+goneName
	return k
}

func (k keys) queue() string   { return k.base + queueName + k.kind }
func (k keys) waiters() string { return k.base + waitersName + k.kind }
func (k keys) turn() string    { return k.base + turnName + k.kind }

// free is the channel on which releases tell that the lock is free, where nobody queues for it.
func (k keys) free() string { return k.base + ":free" + k.kind }

// reserved reports an error if lock is a name that belongs to another lock. Names of tombstones need no such care: they
// contain a token that nobody can guess.
func reserved(lock string) error {
	if strings.IndexByte(lock, '{') < 0 {
		return nil
	}
	for _, kind := range []string{plainKind, tagKind, slotKind} {
		for _, what := range []string{fenceName, queueName, waitersName, turnName} {
			if strings.HasSuffix(lock, what+kind) && hasTag(lock) {
				return fmt.Errorf("%w: keys with a {hash tag} that end in %q are reserved for what belongs to a lock",
					locker.ErrInvalid, what+kind)
			}
		}
	}
	return nil
}

// hasTag reports whether Redis Cluster hashes a part of key only: what is between the first { and the first } after
// it, if that is not empty.
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

// slots is how many a Redis Cluster has.
const slots = 16384

// slot is Redis Cluster's: CRC16 (XMODEM) of the tag, modulo 16384 (Redis Cluster specification).
func slot(key string) uint16 {
	var crc uint16
	for _, b := range []byte(tag(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}

// tagOf finds a short tag that hashes to slot s. It tries 16,384 candidates on average, which takes about a
// millisecond: rare names pay for it, so that no table has to be kept.
func tagOf(s uint16) string {
	for i := 0; ; i++ {
		if t := strconv.Itoa(i); slot(t) == s {
			return t
		}
	}
}
