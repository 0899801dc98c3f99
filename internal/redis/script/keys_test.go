package script_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/core/slots"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestSlot(t *testing.T) {
	// from the Redis Cluster specification, and CLUSTER KEYSLOT of a server
	for key, want := range map[string]uint16{
		"123456789": 12739, "foo": 12182, "{user1000}.following": 3443, "{user1000}.followers": 3443,
		"foo{}{bar}": 8363, "foo{{bar}}zap": 4015, "foo{bar}{zap}": 5061,
	} {
		if got := script.Slot(key); got != want {
			t.Errorf("script.Slot(%q) = %d, want %d", key, got, want)
		}
	}
}

var oddKeys = []string{
	"a", "{a}", "{a}b", "a}b", "{}a", "{}", "}{", "{", "}", "a{", "{a", "{{a}}", "{a}}", "a:fence", "a:lockqueue",
	"lock:{x}y", " ", "\x00", "käse", strings.Repeat("x", 64<<10), "}}}", "a}b{c}", "{3}}a}b",
}

func TestKeysShareASlotAndCollideWithNothing(t *testing.T) {
	seen := map[string]string{}
	for _, key := range oddKeys {
		k := script.KeysOf("", key)
		if k.Lock != key {
			t.Errorf("the lock on %q is kept under %q", key, k.Lock)
		}
		if script.Slot(k.Fence()) != script.Slot(key) {
			t.Errorf("the counter of %.40q is in another slot", key)
		}
		if !isReserved(k.Fence()) {
			t.Errorf("%.40q may be locked, but is the counter of %.40q", k.Fence(), key)
		}
		for _, derived := range []string{k.Queue(), k.Wait(), k.Turn(), k.Entries()} {
			if script.Slot(derived) != script.Slot(key) {
				t.Errorf("%.40q is in another slot than %.40q", derived, key)
			}
			if other, taken := seen[derived]; taken {
				t.Errorf("%.40q and %.40q share %.40q", key, other, derived)
			}
			seen[derived] = key
			if !isReserved(derived) {
				t.Errorf("%.40q may be locked, but belongs to %.40q", derived, key)
			}
		}
		if isReserved(key) {
			t.Errorf("%.40q is refused", key)
		}
	}
}

func isReserved(lock string) bool { return script.Reserved("", lock) != "" }

// A request for permits looks at the locks that programs have which make a lock of each permit.
func TestLocksOfPermitsHaveTheNamesOfTheirSemaphore(t *testing.T) {
	for _, key := range oddKeys {
		for _, middleware := range []string{"", ":tenant", "#permits"} {
			name := func(what string) string { return "lock:a#" + slots.Name(key, what) + middleware }
			a := script.Attempt{Keys: script.KeysOf("lock:", strings.TrimPrefix(name("permits"), "lock:")), Token: "a",
				Wants: &script.Wants{N: 2, Weight: 1}}
			words := a.Enqueue(time.Second, 0, 0, "").Words
			if got := words[8:10]; middleware != "#permits" && !slices.Equal(got, []string{name("gate"), name("0")}) {
				t.Errorf("%.40q looks at %.80q", key, got)
			}
			for _, k := range words[3 : len(words)-2] {
				if script.Slot(k) != script.Slot(words[3]) {
					t.Errorf("%.40q is in another slot than %.40q", k, words[3])
				}
			}
		}
	}
}

func FuzzKeys(f *testing.F) {
	for _, key := range oddKeys {
		f.Add("", key, key+"x")
		f.Add("{p", key, key+"}")
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		if a == b || a == "" || b == "" {
			return
		}
		ka, kb := script.KeysOf(prefix, a), script.KeysOf(prefix, b)
		if script.Reserved(prefix, a) != "" || script.Reserved(prefix, b) != "" {
			return
		}
		as := []string{ka.Lock, ka.Queue(), ka.Wait(), ka.Turn(), ka.Entries(), ka.Fence()}
		for _, of := range []string{kb.Lock, kb.Queue(), kb.Wait(), kb.Turn(), kb.Entries()} {
			if slices.Contains(as, of) {
				t.Errorf("%q and %q collide at %q", a, b, of)
			}
		}
		for _, derived := range as {
			if script.Slot(derived) != script.Slot(ka.Lock) {
				t.Errorf("%q and %q: not one slot", a, b)
			}
		}
	})
}

func TestSlotIsTheServers(t *testing.T) {
	s := redistest.Start(t, "--cluster-enabled", "yes")
	for _, key := range oddKeys {
		k := script.KeysOf("p}:", key)
		want := s.Cmd(t, "CLUSTER", "KEYSLOT", k.Lock)
		for _, derived := range []string{k.Fence(), k.Queue(), k.Wait(), k.Turn(), k.Entries()} {
			if got := s.Cmd(t, "CLUSTER", "KEYSLOT", derived); got != want {
				t.Errorf("%.40q: slot %v, %.40q: slot %v", key, want, derived, got)
			}
		}
	}
}

// The page on rights lists every command that scripts call. The server refuses the others, and a script that can do
// without one hides that.
func TestThePageOnRightsHasTheCommandsOfScripts(t *testing.T) {
	page, err := os.ReadFile("../../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rights, _ := strings.Cut(string(page), "\n## A user for locks\n")
	rights, _, _ = strings.Cut(rights, "\n## ")
	files, err := filepath.Glob("*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`redis\.p?call\(\s*'(\w+)'`).FindAllStringSubmatch(string(text), -1) {
			if !regexp.MustCompile(`\+` + strings.ToLower(m[1]) + `\b`).MatchString(rights) {
				t.Errorf("%s calls %s, which docs/redis.md does not list", file, m[1])
			}
		}
	}
}
