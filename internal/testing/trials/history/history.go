// Package history records the calls of the clients of locks and their results, and judges them in two ways. Each rule
// takes one pass over the sorted history. A model looks for an order in which all operations are legal. Simulated and
// real runs are judged in the same way.
package history

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"
)

// Op is the kind of an event: a call, or something that happened to a lease.
type Op string

// The operations. Call and Return of the last two are the same time.
const (
	Lock    Op = "lock"
	TryLock Op = "trylock"
	Extend  Op = "extend"
	Verify  Op = "verify"
	Unlock  Op = "unlock"
	Until   Op = "until" // the end of a lease was read after a renewal
	Done    Op = "done"  // the lease has ended
)

// Outcome is the result of an operation.
type Outcome string

// The outcomes. The outcome of Done is how the lease ended: by Unlock, because the store reported another owner, or in
// another way.
const (
	OK       Outcome = "ok"
	Held     Outcome = "held"
	NotHeld  Outcome = "not held"
	Lost     Outcome = "lost"
	Taken    Outcome = "taken over"
	Unlocked Outcome = "unlocked"
	Unknown  Outcome = "unknown" // the store was not available, or the context ended
)

// Event is one operation. Its times are true times since the history began. If clocks differ, the recorder translates
// their times, so that a history can be judged without knowledge of the clocks.
type Event struct {
	Client       int
	Op           Op
	Key          string
	Owner        string // owner token of the lease; empty if there is no lease
	Fence        uint64
	Call, Return time.Duration
	// Until is the end of the lease that it reported at Return.
	Until time.Duration
	// Deadline is the time by which the call had to return. If it is 0, there is none.
	Deadline time.Duration
	Outcome  Outcome
}

// History is a growing list of events. It is safe for concurrent use.
type History struct {
	start time.Time

	mu     sync.Mutex
	events []Event
	watch  sync.WaitGroup
}

// New returns an empty history that begins now.
func New() *History { return &History{start: time.Now()} }

// Now returns the time since the history began.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// Add records an event.
func (h *History) Add(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// Wait returns when all recorded leases have ended. Leases end when their Clients are closed, at the latest.
func (h *History) Wait() { h.watch.Wait() }

// Events returns the recorded events.
func (h *History) Events() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// Hash returns a hash of the history. Two histories with equal hashes are the same. Owner tokens are random, so only
// the order of their first appearance counts.
func (h *History) Hash() uint64 {
	sum := fnv.New64a()
	owners := map[string]int{}
	for _, e := range h.Events() {
		if _, known := owners[e.Owner]; !known {
			owners[e.Owner] = len(owners)
		}
		_, _ = fmt.Fprintln(sum, e.Client, e.Op, e.Key, owners[e.Owner], e.Fence, int64(e.Call), int64(e.Return),
			int64(e.Until), e.Outcome)
	}
	return sum.Sum64()
}

// Hold is one acquisition, its extensions and its end.
type Hold struct {
	Client       int
	Key, Owner   string
	Fence        uint64
	Call, Return time.Duration // times of the call of Lock
	Until        time.Duration // the latest end that the lease has reported
	Unlock       time.Duration // when Unlock was first called, or never
	Released     time.Duration // when an Unlock succeeded, or never
	NotHeld      time.Duration // when an Unlock found the lock gone, or never
	Ended        time.Duration // when Done was closed
	Taken        bool          // it ended because the store reported another owner
	First        uint64        // the token with which the owner got the lock from the store; see HandedOver
	extended     []Event
	verified     []Event
}

const never = time.Duration(1<<63 - 1)

// End returns the time until which the holder relies on the lock.
func (h *Hold) End() time.Duration { return min(h.Until, h.Unlock) }

// HandedOver reports whether the holder got the lock from another caller of its Client, without the store.
func (h *Hold) HandedOver() bool { return h.Fence != h.First }

func (h *Hold) String() string {
	return fmt.Sprintf("%.8s of client %d, token %d, asked for at %v, held from %v to %v", h.Owner, h.Client, h.Fence,
		h.Call, h.Return, h.End())
}

// holds returns the holds of each key in the order of their beginnings, and the sorted keys.
func holds(events []Event) (keys []string, byKey map[string][]*Hold) {
	byKey = map[string][]*Hold{}
	// Leases that the callers of a Client hand over to each other have one owner value.
	type lease struct {
		key, owner string
		fence      uint64
	}
	byLease, first := map[lease]*Hold{}, map[lease]uint64{}
	for _, e := range events {
		if (e.Op == Lock || e.Op == TryLock) && e.Outcome == OK {
			h := &Hold{
				Client: e.Client, Key: e.Key, Owner: e.Owner, Fence: e.Fence, Call: e.Call, Return: e.Return,
				Until:  e.Until,
				Unlock: never, Released: never, NotHeld: never, Ended: never,
			}
			if byKey[e.Key] == nil {
				keys = append(keys, e.Key)
			}
			byKey[e.Key] = append(byKey[e.Key], h)
			byLease[lease{e.Key, e.Owner, e.Fence}] = h
			grant := lease{key: e.Key, owner: e.Owner}
			if f, ok := first[grant]; !ok || e.Fence < f {
				first[grant] = e.Fence
			}
		}
	}
	for _, e := range events {
		if h := byLease[lease{e.Key, e.Owner, e.Fence}]; h != nil {
			h.note(e)
		}
	}
	for key, hs := range byKey {
		for _, h := range hs {
			h.First = first[lease{key: key, owner: h.Owner}]
		}
		slices.SortFunc(hs, func(a, b *Hold) int {
			return cmp.Or(cmp.Compare(a.Return, b.Return), cmp.Compare(a.Call, b.Call), cmp.Compare(a.Fence, b.Fence))
		})
	}
	slices.Sort(keys)
	return keys, byKey
}

func (h *Hold) note(e Event) {
	switch {
	case e.Op == Until:
		h.Until = max(h.Until, e.Until)
	case e.Op == Extend && e.Outcome == OK:
		h.Until = max(h.Until, e.Until)
		h.extended = append(h.extended, e)
	case e.Op == Verify && e.Outcome == OK:
		h.verified = append(h.verified, e)
	case e.Op == Unlock:
		h.Unlock = min(h.Unlock, e.Call)
		switch e.Outcome {
		case OK:
			h.Released = min(h.Released, e.Return)
		case NotHeld:
			h.NotHeld = min(h.NotHeld, e.Return)
		}
	case e.Op == Done:
		h.Ended = min(h.Ended, e.Return)
		h.Taken = e.Outcome == Taken
	}
}
