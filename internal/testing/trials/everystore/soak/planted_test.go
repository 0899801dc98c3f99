package soak

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The judge notices each fault, and nothing where there is none.
func TestJudgeFindsPlantedFaults(t *testing.T) {
	say := func(what, key, lease string, fence uint64, began, at int64) word {
		return word{what, key, lease, "", fence, began, at}
	}
	first := word{What: has, Key: "a", Lease: "1", Fence: 5, Began: 10, At: 20}
	for name, tt := range map[string]struct {
		words []word
		found string
	}{
		"two in turn": {[]word{first, say(relies, "a", "1", 5, 0, 30), say(has, "a", "2", 6, 15, 31)}, ""},
		"two at once": {[]word{first, say(relies, "a", "1", 5, 0, 30), say(has, "a", "2", 6, 15, 29)}, "was relied on"},
		"two at once, with another between": {
			[]word{first, say(relies, "a", "1", 5, 0, 30), say(has, "a", "2", 6, 15, 40), say(has, "a", "3", 7, 15, 25)},
			"was relied on",
		},
		"other keys":    {[]word{first, say(relies, "a", "1", 5, 0, 30), say(has, "b", "2", 6, 15, 29)}, ""},
		"a token twice": {[]word{first, say(has, "a", "2", 5, 15, 31)}, "have one token"},
		"a token falls": {[]word{first, say(has, "a", "2", 4, 21, 31)}, "not greater"},
		"calls at once": {[]word{first, say(has, "a", "2", 4, 19, 31)}, ""},
		"a token falls from holder to holder": {
			[]word{
				first, say(relies, "a", "1", 5, 0, 30), say(has, "a", "2", 4, 19, 31), say(relies, "a", "2", 4, 19, 32),
			}, "was relied on after",
		},
		"a wrong certificate": {
			[]word{first, say(verified, "a", "1", 5, 0, 30), say(has, "a", "2", 6, 15, 29)}, "was verified",
		},
		"a right certificate": {[]word{first, say(verified, "a", "1", 5, 0, 30), say(has, "a", "2", 6, 15, 31)}, ""},
		"a call without end":  {[]word{{What: calls, Key: "Lock", Lease: "1"}}, "has not returned"},
		"a call with an end":  {[]word{{What: calls, Key: "Lock", Lease: "1"}, {What: returns, Lease: "1"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJudge()
				for _, w := range tt.words {
					j.hear(1, w)
				}
				time.Sleep(limit + slack + 1)
				j.overdue(limit + slack)
				found := strings.Join(j.verdict(), "; ")
				if tt.found == "" && found != "" || !strings.Contains(found, tt.found) {
					t.Errorf("the judge found %q, expected: %q", found, tt.found)
				}
			})
		})
	}
}
