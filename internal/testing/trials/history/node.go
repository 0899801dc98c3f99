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
	Owner  string // who called: the owner's token, or the waiter

	Before, After NodeState
}

// NodeState is a lock on a node.
type NodeState struct {
	Owner   string // the owner's token, or a value that is not that of a lock; "": free
	Expires time.Duration
	Fence   int64 // the counter in the lock's value; 0: it has none
}

// NodeLog checks the rules of single nodes (NODE) as steps come: holds of one node do not overlap, the counters that it
// accepts for a lock do not decrease in one life, each grant is above the last, and nobody but the owner changes a lock.
// It is for one goroutine at a time.
type NodeLog struct {
	Found  []Violation
	Counts map[string]int // steps by script

	fences map[string]int64 // the greatest counter that a lock has had
}

// Add checks one step.
func (l *NodeLog) Add(s NodeStep) {
	if l.fences == nil {
		l.fences, l.Counts = map[string]int64{}, map[string]int{}
	}
	l.Counts[s.Script]++
	name := fmt.Sprint(s.Node, s.Life, s.Lock)
	last := l.fences[name]
	l.fences[name] = max(last, s.Before.Fence, s.After.Fence)
	releases := s.Script == "release" || s.Script == "handover" || s.Script == "turnrelease"
	was, is := s.Before.Owner, s.After.Owner
	switch {
	case s.Before.Fence > 0 && s.Before.Fence < last, was == is && s.After.Fence < s.Before.Fence:
		l.add(s, "the counter went back, it was %d", last)
	case was == is && was != s.Owner && s.After.Fence != s.Before.Fence:
		l.add(s, "the counter was changed by somebody else than the owner of the lock")
	case was == is && was != "" && s.After.Expires < s.Before.Expires:
		l.add(s, "the life of the lock was shortened")
	case was == is:
	case was == "" && s.Script == "extend", was == "" && s.Script == "raise", was == "" && s.Script == "claim":
		l.add(s, "it created the lock")
	case was != "" && (!releases || was != s.Owner):
		l.add(s, "the lock was taken from its owner")
	case is != "" && !strings.HasPrefix(is, "hold:") && s.After.Fence <= max(last, s.Before.Fence):
		l.add(s, "granted with no greater counter")
	}
}

func (l *NodeLog) add(s NodeStep, format string, args ...any) {
	l.Found = append(l.Found,
		Violation{"NODE",
			fmt.Sprintf("%s by %.8s on node %d at %v, %+v to %+v: ", s.Script, s.Owner, s.Node, s.At, s.Before, s.After) +
				fmt.Sprintf(format, args...)})
}
