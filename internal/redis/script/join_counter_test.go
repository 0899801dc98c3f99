package script_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/golocker/locker/internal/redis/script"
)

// Locks of one slot share a counter, also in one command.
func TestJoinedLocksOfOneSlotGetDifferentCounters(t *testing.T) {
	j := newJoint(t)
	var usual []*script.Usual
	for i := range 4 {
		u := taking(fmt.Sprint("k", i), "o")
		u.Fence = "fence"
		usual = append(usual, u)
	}
	for range 2 { // with and without a counter of before
		got := j.sends(usual...)
		for i := 1; i < len(got); i++ {
			if got[i] != got[i-1]+1 {
				t.Fatalf("counters %d", got)
			}
		}
		j.has("fence", fmt.Sprintf("%016d", got[3]))
		j.s.Cmd(t, "DEL", "k0", "k1", "k2", "k3")
	}
}

// Counters grow whatever the clock says, and keep their form.
func TestJoinedCounters(t *testing.T) {
	j := newJoint(t)
	const ahead = 8_000_000_000_000_000
	for last, want := range map[string]func(counter int64) bool{
		strconv.Itoa(ahead):      func(c int64) bool { return c == ahead+1 },
		"8999999999999998":       func(c int64) bool { return c == 8_999_999_999_999_999 },
		"8999999999999999":       func(c int64) bool { return c == 9_000_000_000_000_000 },
		"9007199254740990":       func(c int64) bool { return c == 9_007_199_254_740_991 },
		"8000000099999998":       func(c int64) bool { return c == 8_000_000_099_999_999 },
		"0000000000000007":       func(c int64) bool { return c >= j.clock()-1e9 },
		"7":                      func(c int64) bool { return c >= j.clock()-1e9 },
		"something else":         func(c int64) bool { return c >= j.clock()-1e9 },
		"another text, of which": func(c int64) bool { return c >= j.clock()-1e9 },
	} {
		for _, n := range []int{1, 2} {
			j.s.Cmd(t, "FLUSHALL")
			j.s.Cmd(t, "SET", "fence of k", last)
			got := j.sends([]*script.Usual{taking("k", "o"), taking("other", "o")}[:n]...)
			if !want(got[0]) {
				t.Errorf("after %q, %d joined: %d", last, n, got[0])
			}
			j.has("k", fmt.Sprintf("%016d|o|1|web-7", got[0]))
			j.has("fence of k", fmt.Sprintf("%016d", got[0]))
		}
	}
}

func TestJoinedCountersFollowTheQuantum(t *testing.T) {
	j := newJoint(t)
	const quantum = 65536
	for n := range 3 {
		u := []*script.Usual{taking("k", "o"), taking("k1", "o"), taking("k2", "o")}
		for i := range u {
			u[i].Quantum = quantum
		}
		before := j.clock()
		got := j.sends(u[:n+1]...)
		if got[0]%quantum != 0 || got[0] <= before-quantum || got[0] > j.clock() {
			t.Errorf("%d joined: the counter is %d at %d", n+1, got[0], before)
		}
		j.s.Cmd(t, "DEL", "k", "k1", "k2")
		if next := j.sends(u[:n+1]...); next[0] <= got[0] || next[0] > got[0]+1 && next[0]%quantum != 0 {
			t.Errorf("%d joined: %d comes after %d", n+1, next[0], got[0])
		}
		j.s.Cmd(t, "FLUSHALL")
	}
}
