package placename

import (
	"slices"
	"strconv"
	"testing"
)

func TestNamesOfAKeyAreAGroup(t *testing.T) {
	seen := map[string]string{}
	for _, key := range []string{
		"k", "{k}", "a{k}b", "}k", "", "k#", "{k}#0", "{k}#rw0", "k#rw", "{}k", "{k}##1", ":", "}:",
	} {
		for _, kind := range []string{"", "rw"} {
			group, _, ok := Group(Of(key, kind+"gate"))
			if !ok || seen[group] != "" {
				t.Errorf("key %q, kind %q: expected a group of its own, seen %q of %q", key, kind, group, seen[group])
			}
			seen[group] = key
			for n := range 3 * Block {
				what := kind + strconv.Itoa(n)
				first, member, ok := Group("app:" + Of(key, what))
				want := "app:" + Of(key, kind+strconv.Itoa(n-n%Block))
				if !ok || first != want || member != strconv.Itoa(n) {
					t.Errorf("%q of key %q: expected it in group %q, seen %q, %q", what, key, want, first, member)
				}
			}
		}
	}
}

func TestOtherNamesAreNoGroup(t *testing.T) {
	for _, name := range []string{
		"", "k", "#", "#1", "k#1", "{tenant}:x", "{k}#", "{k}#01", "{k}#-1", "{k}#1:eu", "{k}#gates", "{k}#70000", "{k}#rw",
		"k##a", "{k}#+1",
	} {
		if first, member, ok := Group(name); ok {
			t.Errorf("%q: expected no group, seen %q, %q", name, first, member)
		}
	}
}

func TestNamesTellWhoseTheyAre(t *testing.T) {
	for _, key := range []string{
		"k", "{k}", "a{k}b", "}k", "", "k#", "{k}#0", "{k}#rw0", "k#rw", "{}k", "{k}##1", ":", "}:", "#", "{#}", "}#", "{#}}",
	} {
		for _, what := range []string{"0", "63", "gate", "rw7", "rwgate", "rwintent", "permits", "rw"} {
			if of, seen, ok := Parse(Of(key, what)); of != key || seen != what || !ok {
				t.Errorf("%q of %q: seen %q of %q, %t", what, key, seen, of, ok)
			}
		}
	}
	for _, name := range []string{"", "k", "#", "k#0", "{k}#", "{k}#x", "{k}#:0", "k##0", "{k}#-1", "{k}#permits2"} {
		if key, what, ok := Parse(name); ok {
			t.Errorf("%q: seen %q of %q, want no place", name, what, key)
		}
	}
}

// The names of the locks that stand for places are told from that of the group, whatever is put before or after both.
func TestApart(t *testing.T) {
	for _, key := range []string{"k", "a{b}c", "}k", "{", "a#rw", "#permits", "{x}#rw"} {
		for _, rw := range []bool{false, true} {
			group, what := "permits", []string{"gate", "0"}
			if rw {
				group, what = "rw", []string{"rwgate", "rwintent", "rw0"}
			}
			var want []string
			for _, w := range what {
				want = append(want, "before:"+Of(key, w)+":after")
			}
			if got := Apart("before:"+Of(key, group)+":after", rw); !slices.Equal(got, want) {
				t.Errorf("%q: got %q, want %q", key, got, want)
			}
		}
	}
	if got := Apart("k", false); got != nil {
		t.Errorf("got %q of a name that is none of a group", got)
	}
}
