package history

import (
	"fmt"
	"strings"
	"time"
)

// NodeStep is one script that was executed on one node, with the state of its lock before and after.
type NodeStep struct {
	Node   int
	Life   int // number of times that the node has lost its data
	At     time.Duration
	Script string
	Lock   string
	Owner  string // owner token of the caller

	Before, After NodeState
}

// NodeState is a lock on a node.
type NodeState struct {
	Owner   string // empty: free
	Expires time.Duration
	Fence   int64
}

// NodeLog checks the rules of single nodes (NODE) with each step. Holds on one node do not overlap. Counters do not
// decrease in one life, and each grant has a greater counter than the last one. Only the owner changes a lock. A
// NodeLog must not be used concurrently.
type NodeLog struct {
	Found  []Violation
	Counts map[string]int // number of steps by script

	fences map[string]int64
}

// Add checks one step.
func (l *NodeLog) Add(s NodeStep) {
	if l.fences == nil {
		l.fences, l.Counts = map[string]int64{}, map[string]int{}
	}
	l.Counts[s.Script]++
	name := fmt.Sprint(s.Node, s.Life, s.Lock)
	if s.Script != "turn" { // the script turn does not read the counter
		if s.Before.Fence < l.fences[name] || s.After.Fence < s.Before.Fence {
			l.add(s, "the counter went back, it was %d", l.fences[name])
		}
		l.fences[name] = s.After.Fence
	}
	releases := s.Script == "release" || s.Script == "handover" || s.Script == "turnrelease"
	was, is := s.Before.Owner, s.After.Owner
	switch {
	case (s.Script == "extend" || s.Script == "raise") && was == is && was != s.Owner &&
		s.After.Fence != s.Before.Fence:
		l.add(s, "the counter was changed by somebody else than the owner of the lock")
	case was == is && was != "" && s.After.Expires < s.Before.Expires:
		l.add(s, "the life of the lock was shortened")
	case was == is:
	case was == "" && s.Script == "extend", was == "" && s.Script == "raise", was == "" && s.Script == "claim":
		l.add(s, "it created the lock")
	// The owner's number may be that of another node, if a node was reached by two addresses: see alias.lua.
	case was != "" && (!releases || token(was) != token(s.Owner)):
		l.add(s, "the lock was taken from its owner")
	case is != "" && !strings.HasPrefix(is, "hold:") && s.After.Fence <= s.Before.Fence:
		l.add(s, "granted with no greater counter")
	}
}

// token returns the token of an owner, without the number of the node.
func token(owner string) string {
	t, _, _ := strings.Cut(owner, "|")
	return t
}

func (l *NodeLog) add(s NodeStep, format string, args ...any) {
	l.Found = append(l.Found,
		Violation{"NODE",
			fmt.Sprintf("%s by %.8s on node %d at %v, %+v to %+v: ", s.Script, s.Owner, s.Node, s.At, s.Before, s.After) +
				fmt.Sprintf(format, args...)})
}
