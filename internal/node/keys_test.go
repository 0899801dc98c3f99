package node

import (
	"slices"
	"strings"
	"testing"
)

func TestSlot(t *testing.T) {
	// from the Redis Cluster specification, and CLUSTER KEYSLOT of a server
	for key, want := range map[string]uint16{
		"123456789": 12739, "foo": 12182, "{user1000}.following": 3443, "{user1000}.followers": 3443,
		"foo{}{bar}": 8363, "foo{{bar}}zap": 4015, "foo{bar}{zap}": 5061,
	} {
		if got := slot(key); got != want {
			t.Errorf("slot(%q) = %d, want %d", key, got, want)
		}
	}
}

var oddKeys = []string{
	"a", "{a}", "{a}b", "a}b", "{}a", "{}", "}{", "{", "}", "a{", "{a", "{{a}}", "{a}}", "a:fence", "a:lockqueue", "lock:{x}y", " ",
	"\x00", "käse", strings.Repeat("x", 64<<10), "}}}", "a}b{c}", "{3}}a}b",
}

func TestKeysShareASlotAndCollideWithNothing(t *testing.T) {
	seen := map[string]string{}
	for _, key := range oddKeys {
		k := keysOf(key)
		if k.lock != key {
			t.Errorf("the lock on %q is kept under %q", key, k.lock)
		}
		if slot(k.gone+"token") != slot(key) {
			t.Errorf("the tombstones of %.40q are in another slot", key)
		}
		for _, derived := range []string{k.fence, k.queue(), k.waiters(), k.turn()} {
			if slot(derived) != slot(key) {
				t.Errorf("%.40q is in another slot than %.40q", derived, key)
			}
			if other, taken := seen[derived]; taken {
				t.Errorf("%.40q and %.40q share %.40q", key, other, derived)
			}
			seen[derived] = key
			if reserved(derived) == nil {
				t.Errorf("%.40q may be locked, but belongs to %.40q", derived, key)
			}
		}
		if err := reserved(key); err != nil {
			t.Errorf("%.40q is refused: %v", key, err)
		}
	}
}

func FuzzKeys(f *testing.F) {
	for _, key := range oddKeys {
		f.Add(key, key+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == b || a == "" || b == "" || reserved(a) != nil || reserved(b) != nil {
			return // not two different keys that may be locked
		}
		ka, kb := keysOf(a), keysOf(b)
		as := []string{a, ka.fence, ka.queue(), ka.waiters(), ka.turn()}
		for _, of := range []string{b, kb.fence, kb.queue(), kb.waiters(), kb.turn()} {
			if slices.Contains(as, of) {
				t.Errorf("%q and %q collide at %q", a, b, of)
			}
		}
		for _, derived := range append(as, ka.gone+"t") {
			if slot(derived) != slot(a) {
				t.Errorf("%q and %q: not one slot", a, derived)
			}
		}
	})
}
