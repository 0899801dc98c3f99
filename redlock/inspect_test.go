package redlock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/redlock"
)

// Each node has an owner, with its number if the value is that of a lock of this library. "-" is for none, "list" for
// what is not a lock, and "down" for a node that does not answer.
func TestInspectionOfAQuorum(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 5)
	l := c.client(t, "redigo", redlock.Budget(time.Second))
	for _, test := range []struct {
		nodes string // one word for each
		state inspect.State
		owner string
		err   error
	}{
		{"- - - - -", inspect.Free, "", nil},
		{"a a a - -", inspect.Held, "a", nil},
		{"a b a b a", inspect.Held, "a", nil},
		{"a a - - -", inspect.Free, "", nil},
		{"a a b b -", inspect.Split, "a", nil},
		{"hold:a hold:a hold:a - b", inspect.Kept, "a", nil},
		{"a|1 a|12 a|3 - b|2", inspect.Held, "a", nil},
		{"a|1 a|1 a|2 - -", inspect.Unknown, "a", locker.ErrNoQuorum}, // two are the same server
		{"list list list a a", inspect.Foreign, "", nil},
		{"a a a down down", inspect.Held, "a", nil},
		{"- - - down down", inspect.Free, "", nil},
		{"a a b down down", inspect.Unknown, "a", locker.ErrNoQuorum},
		{"a a - b down", inspect.Unknown, "a", locker.ErrNoQuorum},
		{"a down down down down", inspect.Unknown, "a", locker.ErrNoQuorum},
	} {
		nodes := strings.Fields(test.nodes)
		c.set(t, nodes)
		var seen inspect.Inspection
		var err error
		heard(nodes, func() inspect.Inspection {
			seen, err = l.Inspect(t.Context(), "k")
			return seen
		})
		if seen.State != test.state || seen.Owner != test.owner || !errors.Is(err, test.err) {
			t.Errorf("%s: seen as %s by %q, %v; want %s by %q, %v", test.nodes, seen.State, seen.Owner, err, test.state,
				test.owner, test.err)
		}
		if (seen.Remaining > 0) != (test.state != inspect.Free && test.state != inspect.Foreign && test.err == nil) &&
			test.err == nil {
			t.Errorf("%s: remaining %v", test.nodes, seen.Remaining)
		}
		for i, n := range seen.Nodes {
			twice := strings.Contains(nodes[i], "|") && slices.Contains(nodes[:i], nodes[i])
			if (n.Err != nil) != (nodes[i] == "down" || twice) || n.Name != c[i].Addr() {
				t.Errorf("%s: node %d is %+v", test.nodes, i+1, n)
			}
		}
		for _, s := range c {
			s.Resume()
		}
	}
}

// set gives each node what there is of k: nothing ("-"), a list, or its owner, who is a on a node that then hangs
// ("down").
// stored returns the value of a lock.
func stored(owner string) string {
	if !strings.Contains(owner, "|") {
		return owner
	}
	return "0000000000000007|" + owner + "|label"
}

func (c cluster) set(t *testing.T, nodes []string) {
	t.Helper()
	for i, s := range c {
		s.Resume()
		s.Cmd(t, "FLUSHALL")
		switch nodes[i] {
		case "-":
		case "list":
			s.Cmd(t, "RPUSH", "lock:k", "a")
		case "down":
			s.Cmd(t, "SET", "lock:k", "a", "PX", 60000)
			s.Pause()
		default:
			s.Cmd(t, "SET", "lock:k", stored(nodes[i]), "PX", 60000)
		}
	}
}

// heard looks until all nodes that are up were heard: when a machine stalls, one may be late by more than the budget.
func heard(nodes []string, look func() inspect.Inspection) {
	for range 10 {
		seen := look()
		late := false
		for i, n := range seen.Nodes {
			late = late || nodes[i] != "down" && n.Err != nil
		}
		if !late {
			return
		}
	}
}

// A lock is taken from one owner on all nodes; what others have there is left alone, and so are nodes that do not
// answer.
func TestForceReleaseOnAQuorum(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 5)
	l := c.client(t, "goredis", redlock.Budget(time.Second))
	for _, test := range []struct {
		nodes, from string
		err         error
		after       string
	}{
		{"a a a b -", "", nil, "- - - b -"},
		{"a a a b -", "b", nil, "a a a - -"},
		{"a a a b -", "c", locker.ErrNotHeld, "a a a b -"},
		{"- - - - -", "", locker.ErrNotHeld, "- - - - -"},
		{"a a a down down", "", nil, "- - - x x"},
		{"a a a list list", "", nil, "- - - list list"},
		{"list list list a a", "", nil, "list list list - -"},
		{"list list list - -", "", locker.ErrForeignKey, "list list list - -"},
		{"down down down - -", "", locker.ErrNoQuorum, "x x x - -"},
		{"down down down a a", "", locker.ErrNoQuorum, "x x x - -"},
		{"hold:a hold:a hold:a hold:a -", "", nil, "- - - - -"},
		{"a|2 a|3 a|1 b|4 -", "", nil, "- - - b|4 -"},
		{"a|2 a|3 a|1 b|4 -", "b", nil, "a|2 a|3 a|1 - -"},
		{"a|2 a|2 a|1 b|2 -", "a", nil, "- - - b|2 -"},
		{"hold:a hold:a hold:a - a|1", "", nil, "- - - - a|1"},
	} {
		nodes := strings.Fields(test.nodes)
		var seen inspect.Inspection
		var err error
		heard(nodes, func() inspect.Inspection {
			c.set(t, nodes)
			seen, err = l.ForceRelease(t.Context(), "k", test.from)
			return seen
		})
		if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
			t.Errorf("%s from %q: %v, want %v", test.nodes, test.from, err, test.err)
		}
		if err == nil && seen.Owner != "a" && seen.Owner != test.from {
			t.Errorf("%s from %q: says that it was taken from %q", test.nodes, test.from, seen.Owner)
		}
		for _, s := range c {
			s.Resume()
		}
		for i, want := range strings.Fields(test.after) {
			got := "-"
			if c[i].Cmd(t, "TYPE", "lock:k") == "list" {
				got = "list"
			} else if v, ok := c[i].Cmd(t, "GET", "lock:k").(string); ok {
				got = v
			}
			if got != stored(want) && want != "x" {
				t.Errorf("%s from %q: node %d has %s afterwards, want %s", test.nodes, test.from, i+1, got, want)
			}
		}
	}
}
