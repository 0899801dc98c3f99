package history

import (
	"fmt"
	"strings"
	"time"
)

// NodeStep is one script executed on one node, with what it did to its lock.
type NodeStep struct {
	Node   int
	Life   int // how often the node has lost its data
	At     time.Duration
	Script string
	Lock   string
	Owner  string // who called

	Before, After NodeState
}

// NodeState is a lock on a node.
type NodeState struct {
	Owner   string // "": free
	Expires time.Duration
	Fence   int64
}

// NodeLog checks the rules of single nodes (NODE) as steps come: holds of one node do not overlap, its counters do not
// decrease in one life, each grant is above the last, and nobody but the owner changes a lock. It is for one goroutine
// at a time.
type NodeLog struct {
	Found  []Violation
	Counts map[string]int // steps by script

	fences map[string]int64
}

// Add checks one step.
func (l *NodeLog) Add(s NodeStep) {
	if l.fences == nil {
		l.fences, l.Counts = map[string]int64{}, map[string]int{}
	}
	l.Counts[s.Script]++
	name := fmt.Sprint(s.Node, s.Life, s.Lock)
	if s.Script != "turn" { // it does not know the counter
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
	// of a node that was reached by two addresses, see alias.lua
	case was != "" && (!releases || token(was) != token(s.Owner)):
		l.add(s, "the lock was taken from its owner")
	case is != "" && !strings.HasPrefix(is, "hold:") && s.After.Fence <= s.Before.Fence:
		l.add(s, "granted with no greater counter")
	}
}

// token is an owner's without the number of the node.
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
