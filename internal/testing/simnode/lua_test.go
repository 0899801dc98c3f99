package simnode

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	lua "github.com/yuin/gopher-lua"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// Scripts read numbers with leading zeros as decimals, as they do on a server.
func TestNumbersAreDecimal(t *testing.T) {
	n := New()
	for expression, want := range map[string]int64{
		"tonumber('0000000000000010')": 10,
		"'0000000000000010' + 0":       10,
		"0 + '010'":                    10,
		"'010' - '001'":                9,
		"'017' * 1":                    17,
		"'010' / '02'":                 5,
		"'017' % '010'":                7,
		"tonumber('08') + 1":           9,
		"tonumber('x') == nil and 1":   1,
		"tonumber(nil) == nil and 1":   1,
	} {
		if got := n.Execute(drivers.Command{"EVAL", "return " + expression, "0"}); got != want {
			t.Errorf("%s is %v, expected %d", expression, got, want)
		}
	}
}

// The patterns of the scripts match what they match in gopher-lua's own string.match, and give the same captures.
func TestPatterns(t *testing.T) {
	patterns := map[string]bool{}
	for _, text := range script.Texts() {
		for _, found := range regexp.MustCompile(`'(\^[^']*|[^']+\$)'`).FindAllStringSubmatch(text, -1) {
			patterns[found[1]] = true
		}
	}
	if len(patterns) < 15 {
		t.Fatalf("found only %v", patterns)
	}
	original := lua.NewState()
	defer original.Close()
	// Of these a random text is made that matches some pattern often enough.
	parts := []string{"|", ":", "+", "0", "17", "0000000000000010", "owner", " ", "x:sharded", "\xff", "d1"}
	matched := 0
	for pattern := range patterns {
		for range 2000 {
			text := ""
			for range rand.IntN(8) {
				text += parts[rand.IntN(len(parts))]
			}
			from := 1 + rand.IntN(4)
			call := lua.P{Fn: original.GetField(original.GetGlobal("string"), "match"), NRet: lua.MultRet, Protect: true}
			if err := original.CallByParam(call, lua.LString(text), lua.LString(pattern), lua.LNumber(from)); err != nil {
				t.Fatal(err)
			}
			var want, got []string
			for i := range original.GetTop() {
				if text, ok := original.Get(i + 1).(lua.LString); ok {
					want = append(want, string(text))
				}
			}
			original.SetTop(0)
			for _, c := range new(matcher).find(text, pattern, min(from-1, len(text))) {
				got = append(got, text[c[0]:c[1]])
			}
			if !slices.Equal(want, got) {
				t.Fatalf("%q in %q from %d: got %q, want %q", pattern, text, from, got, want)
			}
			matched += min(len(got), 1)
		}
	}
	t.Logf("%d patterns, %d matches", len(patterns), matched)
	if matched < 500 {
		t.Error("too few matches")
	}
}

func TestPatternsThatAreNotSimulated(t *testing.T) {
	for _, pattern := range []string{"a-", "%l", "%1"} {
		reply := New().Execute(drivers.Command{"EVAL", "return string.match('aaa', '" + pattern + "')", "0"})
		if _, failed := reply.(drivers.ServerError); !failed {
			t.Errorf("%s: got %v, want an error", pattern, reply)
		}
	}
}
