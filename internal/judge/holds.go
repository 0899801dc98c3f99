package judge

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/middleware/audit"
)

// Call has the times of a call.
type Call struct{ Asked, Answered time.Duration }

// Hold is one acquisition, its extensions and its end, by one clock.
type Hold struct {
	Entry        // of the acquisition
	Call, Return time.Duration
	Until        time.Duration // the end of the lease, as it was reported last
	Unlock       time.Duration // when Unlock was first called, or never
	Released     time.Duration // when an Unlock succeeded, or never
	NotHeld      time.Duration // when an Unlock found the lock gone, or never
	Ended        time.Duration // when the holder was told that it is lost, or never
	Extended     []Call        // successful ones
	Verified     []Call        // the same

	last   *Entry        // the line with which it ends, or nil
	told   time.Duration // the end of the lease as its loss says it
	lost   bool          // the store has said that the lock belongs to the lease no longer
	again  bool          // and has released it later
	forced bool          // an operator has taken the lock

	// The last line that says that the lease has not ended, and when the call was made.
	alive uint64
	sure  time.Duration
}

// Never is a time that does not come.
const Never = time.Duration(math.MaxInt64)

// End returns the time until which the holder relies on the lock.
func (h *Hold) End() time.Duration { return min(h.Until, h.Unlock, h.Ended) }

// HandedOver reports whether the holder got the lock from another caller of its Client, without the store.
func (h *Hold) HandedOver() bool { return h.Event == audit.HandedOver }

func (h *Hold) block() (first, end uint64) {
	if h.First == 0 {
		return h.Fence, h.Fence + 1
	}
	return h.First, h.First + uint64(max(1, h.Tokens))
}

// reads reports whether others may read beside the holder, whose tokens have no order then.
func (h *Hold) reads() bool { return h.Kind == audit.Shared || h.Kind == audit.Upgradeable }

// excludes reports whether the other must not hold the key at the same time. A process that upgrades its lock has both.
func (h *Hold) excludes(other *Hold) bool {
	if h.Kind == audit.Exclusive && other.Kind == audit.Upgradeable && h.Process == other.Process {
		return false
	}
	return !h.reads() || !other.reads() || h.Kind == audit.Upgradeable && other.Kind == audit.Upgradeable
}

// clock takes the times of a line.
type clock func(l *audit.Line) (asked, answered, until time.Duration)

// own is the monotonic clock of a process.
func own(l *audit.Line) (asked, answered, until time.Duration) {
	return l.AskedMono, l.AnsweredMono, l.UntilMono
}

// wall returns the wall clock, from a time on.
func wall(from time.Time) clock {
	return func(l *audit.Line) (asked, answered, until time.Duration) {
		return l.Asked.Sub(from), l.Answered.Sub(from), l.Until.Sub(from)
	}
}

// holds returns the holds of one key, in the order of their beginnings. entries are in the order of processes and
// numbers.
func (l *Logs) holds(entries []Entry, at clock) (hs []*Hold) {
	type lease struct {
		process, grant string
		fence          uint64
	}
	byLease := map[lease]*Hold{}
	forced, all := map[uint64]bool{}, false
	for i := range entries {
		e := &entries[i]
		id := lease{e.Process, e.Grant, e.Fence}
		h := byLease[id]
		switch {
		case e.Event == audit.Forced:
			if e.Outcome == audit.OK || e.Outcome == audit.Unknown {
				forced[e.Fence] = true
				all = all || e.Fence == 0 // of which holder is not known
			}
		case e.Event == audit.Acquired, e.Event == audit.HandedOver:
			if h != nil && h.reads() { // readers of one place
				continue
			}
			h = &Hold{Entry: *e, Unlock: Never, Released: Never, NotHeld: Never, Ended: Never}
			h.Call, h.Return, h.Until = at(&e.Line)
			hs, byLease[id] = append(hs, h), h
			h.alive, h.sure = e.Seq, h.Return
		case h != nil:
			h.note(l.processes[e.Process], e, at)
		}
	}
	for _, h := range hs {
		p := l.processes[h.Process]
		if h.last == nil {
			h.endsAt(p, p.closed)
		}
		first, _ := h.block()
		if h.forced = all || forced[first]; h.forced {
			h.Until = h.Return // it is not known when
		}
	}
	slices.SortStableFunc(hs, func(a, b *Hold) int {
		return cmp.Or(cmp.Compare(a.Return, b.Return), cmp.Compare(a.Call, b.Call), cmp.Compare(a.Fence, b.Fence))
	})
	return hs
}

// endsAt records that the lease ends with a line, or that there is no such line. If lines may be missing before that,
// one of them may have said that the holder has begun to unlock.
func (h *Hold) endsAt(p *process, seq uint64) {
	if seq == 0 || !p.whole(h.alive, seq) {
		h.Until = min(h.Until, h.sure)
	}
}

func (h *Hold) note(p *process, e *Entry, at clock) {
	asked, answered, until := at(&e.Line)
	ok := e.Outcome == audit.OK
	if e.Kind == audit.Shared && h.Kind != audit.Shared { // a downgrade, from which on others may read
		h.Unlock = min(h.Unlock, asked)
	}
	switch {
	case e.Event == audit.Extended && ok:
		h.Extended, h.Until = append(h.Extended, Call{asked, answered}), until
		h.alive, h.sure = e.Seq, max(h.sure, asked)
	case e.Event == audit.Verified && ok:
		h.Verified = append(h.Verified, Call{asked, answered})
		h.alive, h.sure = e.Seq, max(h.sure, asked)
	case e.Event == audit.Released, e.Event == audit.Lost:
		if h.last == nil {
			h.endsAt(p, e.Seq)
			h.last = e
		}
		switch {
		case e.Event == audit.Lost:
			h.Ended, h.told = answered, until
			h.lost = h.lost || Taken(e.Reason)
		case ok:
			h.again = h.again || h.lost
			h.Released = min(h.Released, answered)
		case e.Outcome == audit.NotHeld:
			h.NotHeld = min(h.NotHeld, answered)
		}
		if e.Event == audit.Released {
			h.Unlock = min(h.Unlock, asked)
		}
	}
}

// Taken reports whether the reason of a loss is one that the store has reported.
func Taken(reason string) bool {
	return slices.Contains([]locker.LostReason{locker.LostGone, locker.LostTakenOver, locker.LostSuperseded},
		locker.LostReason(reason))
}
