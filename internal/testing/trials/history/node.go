package history

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// NodeStep is one script executed on one node, with what it did to its lock.
type NodeStep struct {
	Node    int
	Life    int           // how often the node has lost its data
	Began   time.Duration // when it last did; 0: never
	At      time.Duration
	Script  string
	Lock    string
	Owner   string // who called: the owner's token, or the waiter
	Counter string // the key of the counter of the lock's slot; empty: the counter is not known

	Before, After NodeState
}

// NodeState is a lock on a node.
type NodeState struct {
	Owner   string // the owner's token, or a value that is not that of a lock; "": free
	Expires time.Duration
	Fence   int64 // the counter in the lock's value; 0: it has none, or it is not known
	Marked  bool  // the value says that somebody waits
	Waits   bool  // somebody is known to be in the queue
	Slot    int64 // the counter of the lock's slot, if the step has Counter
}

// NodeLog checks the rules of single nodes (NODE) as steps come:
//   - Holds of one node do not overlap, and nobody but the owner changes a lock.
//   - The counters that it accepts for a lock do not decrease in one life, and each grant is above the last.
//   - The counter of a slot does not decrease in one life, and is not below that of a lock of the slot.
//   - A node that has lost data grants nothing before all locks that it may have known have ended.
//   - A lock that somebody waits for is marked, and a mark stays for as long as the owner has the lock.
//
// It is for one goroutine at a time.
type NodeLog struct {
	// Rest is how long a node that has lost data must not grant anything. 0: it may.
	Rest   time.Duration
	Found  []Violation
	Counts map[string]int // steps by script, and "marks"

	fences map[string]int64 // the greatest counter that a lock or a slot has had
	// values has the nodes on which a grant has had a counter, with the greatest counter of the slot meanwhile.
	values map[tokenOf]map[int]int64
}

// tokenOf is a grant with a counter.
type tokenOf struct {
	grant string
	fence int64
}

// grantOf returns what a log has instead of an owner's token.
func grantOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:8])
}

// Add checks one step.
func (l *NodeLog) Add(s NodeStep) {
	if l.fences == nil {
		l.fences, l.Counts, l.values = map[string]int64{}, map[string]int{}, map[tokenOf]map[int]int64{}
	}
	l.Counts["script "+s.Script]++
	l.lock(s)
	l.slot(s)
	l.mark(s)
	if s.After.Fence > 0 {
		of := tokenOf{grantOf(s.After.Owner), s.After.Fence}
		if l.values[of] == nil {
			l.values[of] = map[int]int64{}
		}
		l.values[of][s.Node] = max(l.values[of][s.Node], s.After.Slot, s.After.Fence)
	}
}

// CheckTokens (OWN) compares what clients were told with the nodes: the first token of a grant was the counter in the
// lock's value on at least as many nodes as are needed, while the owner had the lock there. The tokens of the leases
// that were handed over from it were not past the counter of the slot.
func (l *NodeLog) CheckTokens(h *History, needed int) (found []Violation) {
	keys, byKey := h.read().Holds(h.start)
	for _, key := range keys {
		for _, hold := range byKey[key] {
			switch {
			case hold.HandedOver() && needed > 1:
				l.Counts["handed over, several nodes"]++
			case hold.HandedOver():
				l.Counts["handed over, one node"]++
			}
			on := 0
			for _, slot := range l.values[tokenOf{hold.Grant, int64(hold.First)}] {
				if int64(hold.Fence) <= slot {
					on++
				}
			}
			if on < needed {
				found = append(found, Violation{Rule: "OWN", Text: fmt.Sprintf(
					"key %s: token %d of grant %s, and the lock had the first one on %d nodes of the %d that are needed", key,
					hold.Fence, hold.Grant, on, needed)})
			}
		}
	}
	return found
}

func (l *NodeLog) lock(s NodeStep) {
	last := l.greatest(s, s.Lock, max(s.Before.Fence, s.After.Fence))
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
	case is != "" && !strings.HasPrefix(is, "hold:") && s.Began > 0 && s.At < s.Began+l.Rest:
		l.add(s, "granted %v after the node lost data", s.At-s.Began)
	case was != "" && (!releases || was != s.Owner):
		l.add(s, "the lock was taken from its owner")
	case is != "" && !strings.HasPrefix(is, "hold:") && s.After.Fence <= max(last, s.Before.Fence):
		l.add(s, "granted with no greater counter")
	}
}

func (l *NodeLog) slot(s NodeStep) {
	if s.Counter == "" {
		return
	}
	last := l.greatest(s, s.Counter, s.After.Slot)
	switch {
	case s.Before.Slot < last, s.After.Slot < s.Before.Slot:
		l.add(s, "the counter of the slot went back, it was %d", last)
	case s.After.Slot < s.After.Fence:
		l.add(s, "the counter of the slot is below that of the lock")
	}
}

func (l *NodeLog) mark(s NodeStep) {
	same := s.Before.Owner == s.After.Owner
	switch {
	case same && s.Before.Marked && !s.After.Marked:
		l.add(s, "the mark was lost")
	case s.After.Fence > 0 && s.After.Waits && !s.After.Marked:
		l.add(s, "somebody waits, and the lock is not marked")
	case s.After.Marked && !(same && s.Before.Marked):
		l.Counts["marks"]++
	}
}

// greatest returns the greatest counter that something has had in this life of the node, and takes c into account for
// later.
func (l *NodeLog) greatest(s NodeStep, of string, c int64) (last int64) {
	name := fmt.Sprint(s.Node, s.Life, of)
	last = l.fences[name]
	l.fences[name] = max(last, c)
	return last
}

func (l *NodeLog) add(s NodeStep, format string, args ...any) {
	l.Found = append(l.Found, Violation{Rule: "NODE", Text: fmt.Sprintf("%s by %.8s on node %d at %v, %+v to %+v: ",
		s.Script, s.Owner, s.Node, s.At, s.Before, s.After) + fmt.Sprintf(format, args...)})
}
