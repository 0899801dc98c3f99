package soak

import (
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/virtual"
)

// history is a history that the judge has to judge: leases as their holders saw them.
type history struct {
	spans  []span
	bounds []bound // of permits
	found  string  // a part of what the judge finds; empty: nothing is wrong
}

// test checks that the judge finds what is wrong with a history, and nothing where there is nothing.
func (h history) test(t *testing.T) {
	t.Helper()
	j := newJudge()
	for _, s := range h.spans {
		j.add(s)
		j.bounds[s.Key] = h.bounds
	}
	j.expect(t, h.found)
}

// add tells the judge of a lease.
func (j *judge) add(s span) {
	s.What = has
	j.hear(1, s.word)
	if s.last > 0 {
		j.hear(1, word{What: relies, Key: s.Key, Lease: s.Lease, At: s.last})
	}
	if s.certificate > 0 {
		j.hear(1, word{What: verified, Key: s.Key, Lease: s.Lease, At: s.certificate})
	}
}

// expect checks that the judge finds something, or nothing if found is empty.
func (j *judge) expect(t *testing.T, found string) {
	t.Helper()
	all := strings.Join(j.verdict(), "; ")
	if found == "" && all != "" || !strings.Contains(all, found) {
		t.Errorf("the judge found %q, expected: %q", all, found)
	}
}

// leased is a lease. Its name, its token, the start of the call, when its holder had it, and until when its holder
// relied on it.
func leased(k kind, name string, fence uint64, began, at, last int64) span {
	return span{word: word{Kind: k, Key: "k", Lease: name, Fence: fence, Began: began, At: at}, last: last}
}

// on returns s for another key.
func (s span) on(key string) span {
	s.Key = key
	return s
}

// resumed returns s as one that was resumed of a text.
func (s span) resumed(text string) span {
	s.Text = text
	return s
}

// sure returns s with a Verify that began at a time and has succeeded.
func (s span) sure(at int64) span {
	s.certificate = at
	return s
}

// The judge notices each fault of locks, and nothing where there is none.
func TestJudgeFindsPlantedFaults(t *testing.T) {
	first := leased(lock, "1", 5, 10, 20, 30)
	unused := leased(lock, "1", 5, 10, 20, 0)
	for name, h := range map[string]history{
		"two in turn": {spans: []span{first, leased(lock, "2", 6, 15, 31, 32)}},
		"two at once": {spans: []span{first, leased(lock, "2", 6, 15, 29, 32)}, found: "was relied on"},
		"two at once, with another between": {
			spans: []span{first, leased(lock, "2", 6, 15, 40, 41), leased(lock, "3", 7, 15, 25, 26)}, found: "was relied on",
		},
		"one that came too late to rely on it": {spans: []span{first, leased(lock, "2", 6, 15, 29, 0)}},
		"other keys":                           {spans: []span{first, leased(lock, "2", 6, 15, 29, 32).on("b")}},
		"a token twice": {
			spans: []span{unused, leased(lock, "2", 5, 15, 31, 0)}, found: "have one token",
		},
		"a token falls": {
			spans: []span{unused, leased(lock, "2", 4, 21, 31, 0)}, found: "not greater",
		},
		"calls at once": {spans: []span{unused, leased(lock, "2", 4, 19, 31, 0)}},
		"a token falls from holder to holder": {
			spans: []span{first, leased(lock, "2", 4, 19, 31, 32)}, found: "was relied on after",
		},
		"a text twice": {
			spans: []span{first.resumed("t"), leased(lock, "2", 6, 15, 31, 32).resumed("t")}, found: "of one text",
		},
		"texts in turn":       {spans: []span{first.resumed("t"), leased(lock, "2", 6, 15, 31, 32).resumed("u")}},
		"a wrong certificate": {spans: []span{unused.sure(30), leased(lock, "2", 6, 15, 29, 0)}, found: "was verified"},
		"a right certificate": {spans: []span{unused.sure(30), leased(lock, "2", 6, 15, 31, 0)}},
	} {
		t.Run(name, h.test)
	}
}

// The judge notices a call that does not return.
func TestJudgeFindsCallsWithoutEnd(t *testing.T) {
	begins, ends := word{What: calls, Key: "Lock", Lease: "1"}, word{What: returns, Lease: "1"}
	for name, tt := range map[string]struct {
		words []word
		found string
	}{
		"a call without an end": {[]word{begins}, "has not returned"},
		"a call with an end":    {[]word{begins, ends}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				j := newJudge()
				for _, w := range tt.words {
					j.hear(1, w)
				}
				time.Sleep(limit + slack + 1)
				j.overdue(limit + slack)
				j.expect(t, tt.found)
			})
		})
	}
}

// A worker writes each word before it goes on, except for those that are written with the next one.
func TestWordsAreWrittenBeforeTheWorkerGoesOn(t *testing.T) {
	var out strings.Builder
	say, flush := speaker(&out)
	for _, tt := range []struct {
		what  string
		lines int
	}{{calls, 1}, {returns, 1}, {has, 1}, {relies, 4}, {verified, 5}, {calls, 6}, {returns, 6}} {
		say(word{What: tt.what})
		if got := strings.Count(out.String(), "\n"); got != tt.lines {
			t.Errorf("after %q: %d lines, expected %d", tt.what, got, tt.lines)
		}
	}
	if flush(); strings.Count(out.String(), "\n") != 7 {
		t.Errorf("at the end: %q", out.String())
	}
}
