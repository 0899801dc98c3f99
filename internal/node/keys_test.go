package node

import (
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
	"a", "{a}", "{a}b", "a}b", "{}a", "{}", "}{", "{", "}", "a{", "{a", "{{a}}", "{a}}", "a:fence", "lock:{x}y", " ",
	"\x00", "käse", strings.Repeat("x", 64<<10), "}}}", "a}b{c}", "{3}}a}b",
}

func TestKeysShareASlotAndCollideWithNothing(t *testing.T) {
	seen := map[string]string{}
	for _, key := range oddKeys {
		k := keysOf(key)
		if k.lock != key {
			t.Errorf("the lock on %q is kept under %q", key, k.lock)
		}
		for _, derived := range []string{k.fence, k.gone + "token"} {
			if slot(derived) != slot(key) {
				t.Errorf("%.40q is in another slot than %.40q", derived, key)
			}
		}
		if other, taken := seen[k.fence]; taken {
			t.Errorf("%.40q and %.40q share the counter %.40q", key, other, k.fence)
		}
		seen[k.fence] = key
		if reserved(k.fence) == nil {
			t.Errorf("%.40q may be locked, but is the counter of %.40q", k.fence, key)
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
			t.Skip()
		}
		ka, kb := keysOf(a), keysOf(b)
		if ka.fence == kb.fence || ka.fence == b || kb.fence == a {
			t.Errorf("%q and %q collide", a, b)
		}
		if slot(ka.fence) != slot(a) || slot(ka.gone+"t") != slot(a) {
			t.Errorf("%q: not one slot", a)
		}
	})
}
