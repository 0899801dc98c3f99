// Package history records what the clients of locks did and were told, and judges it: by rules that each take one pass
// over the sorted history, and by a model that looks for an order in which everything makes sense. Simulated and real
// runs are judged alike.
package history

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"
)

// Op is what was called, or happened.
type Op string

// The operations. Times of the last two are the same at both ends.
const (
	Lock    Op = "lock"
	TryLock Op = "trylock"
	Extend  Op = "extend"
	Unlock  Op = "unlock"
	Until   Op = "until" // a look at a lease after a renewal
	Done    Op = "done"  // the lease has ended
)

// Outcome is what an operation returned.
type Outcome string

// The outcomes. For Done it is how the lease ended: by Unlock, because it was told that somebody else has the lock, or
// otherwise.
const (
	OK       Outcome = "ok"
	Held     Outcome = "held"
	NotHeld  Outcome = "not held"
	Lost     Outcome = "lost"
	Taken    Outcome = "taken over"
	Unlocked Outcome = "unlocked"
	Unknown  Outcome = "unknown" // not available, or the context has ended
)

// Event is one operation. Times are the true ones, since the history began: where clocks differ, who records translates
// them, so that a history can be judged without knowing whose clock was wrong.
type Event struct {
	Client       int
	Op           Op
	Key          string
	Owner        string // of the lease; empty if there is none
	Fence        uint64
	Call, Return time.Duration
	// Until is the end of the lease as it said at Return.
	Until time.Duration
	// Deadline is by when the call had to return. 0: whenever it liked.
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

// Now is the time since it began.
func (h *History) Now() time.Duration { return time.Since(h.start) }

// Add records an event.
func (h *History) Add(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

// Wait returns when all recorded leases have ended, which they do when their Clients are closed.
func (h *History) Wait() { h.watch.Wait() }

// Events returns what was recorded.
func (h *History) Events() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// Hash is a number for what happened: two histories with the same one are the same. Owners, which are drawn anew each
// time, count only by the order of their appearance.
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

// Hold is one acquisition with all that became of it.
type Hold struct {
	Client       int
	Key, Owner   string
	Fence        uint64
	Call, Return time.Duration // of Lock
	Until        time.Duration // the latest end that the lease has claimed
	Unlock       time.Duration // when Unlock was called first; never if it was not
	Released     time.Duration // when an Unlock returned that succeeded; never if none did
	NotHeld      time.Duration // when an Unlock returned that found the lock gone; never if none did
	Ended        time.Duration // when Done was closed
	Taken        bool          // it ended because it was told that somebody else has the lock
	extended     []Event
}

const never = time.Duration(1<<63 - 1)

// End is until when the holder relies on the lock.
func (h *Hold) End() time.Duration { return min(h.Until, h.Unlock) }

func (h *Hold) String() string {
	return fmt.Sprintf("%.8s of client %d, token %d, asked for at %v, held from %v to %v", h.Owner, h.Client, h.Fence,
		h.Call, h.Return, h.End())
}

// holds returns the holds of each key in the order of their beginnings, and those keys in order.
func holds(events []Event) (keys []string, byKey map[string][]*Hold) {
	byKey = map[string][]*Hold{}
	byOwner := map[[2]string]*Hold{}
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
			byOwner[[2]string{e.Key, e.Owner}] = h
		}
	}
	for _, e := range events {
		if h := byOwner[[2]string{e.Key, e.Owner}]; h != nil {
			h.note(e)
		}
	}
	for _, hs := range byKey {
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
