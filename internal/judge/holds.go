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

	from   *Hold         // before it was made a shared one, or nil
	last   *Entry        // the line with which it ends, or nil
	told   time.Duration // when its loss should have been reported at the latest
	lost   bool          // the store has said that the lock belongs to the lease no longer
	again  bool          // and has released it later
	forced bool          // an operator may have taken the lock
	others int           // further readers that have the same place
	ahead  time.Duration // by how much the clock was ahead of the monotonic one when Until was told

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
func (h *Hold) reads() bool {
	return !h.Alone && (h.Kind == audit.Shared || h.Kind == audit.Upgradeable)
}

// excludes reports whether the other must not hold the key at the same time.
func (h *Hold) excludes(other *Hold) bool {
	return !h.reads() || !other.reads() || h.Kind == audit.Upgradeable && other.Kind == audit.Upgradeable
}

// clock takes the times of a line.
type clock func(l *audit.Line) (asked, answered, until time.Duration)

// own returns the monotonic clock of each process, which is set forward by what the wall clock has gained on it: the
// monotonic clock stands still while the machine sleeps, and the validity of a lease ends by the earlier of both.
func (l *Logs) own(entries []Entry) clock {
	type stamp struct{ mono, gained time.Duration }
	stamps := map[string][]stamp{}
	add := func(line *audit.Line) {
		from := entries[0].Asked
		stamps[line.Process] = append(stamps[line.Process],
			stamp{line.AskedMono, line.Asked.Sub(from) - line.AskedMono},
			stamp{line.AnsweredMono, line.Answered.Sub(from) - line.AnsweredMono})
	}
	for i := range entries {
		add(&entries[i].Line)
	}
	for process, of := range stamps {
		if p := l.processes[process]; p.closed > 0 {
			add(&p.end)
			of = stamps[process]
		}
		slices.SortFunc(of, func(a, b stamp) int { return cmp.Compare(a.mono, b.mono) })
		for i := range of[1:] {
			of[i+1].gained = max(of[i+1].gained, of[i].gained)
		}
	}
	gained := func(process string, mono time.Duration) time.Duration {
		of := stamps[process]
		n, _ := slices.BinarySearchFunc(of, mono, func(s stamp, mono time.Duration) int {
			return cmp.Or(cmp.Compare(s.mono, mono), -1) // the last one of that time
		})
		return of[n-1].gained
	}
	return func(line *audit.Line) (asked, answered, until time.Duration) {
		gain := gained(line.Process, line.AnsweredMono)
		return line.AskedMono + gained(line.Process, line.AskedMono), line.AnsweredMono + gain, line.UntilMono + gain
	}
}

// wall returns the wall clock, from a time on.
func wall(from time.Time) clock {
	return func(l *audit.Line) (asked, answered, until time.Duration) {
		return l.Asked.Sub(from), l.Answered.Sub(from), l.Until.Sub(from)
	}
}

// begin returns a hold that begins with a line.
func begin(e *Entry, at clock) *Hold {
	h := &Hold{Entry: *e, Unlock: Never, Released: Never, NotHeld: Never, Ended: Never}
	h.Call, h.Return, h.Until = at(&e.Line)
	h.ahead = h.Return - e.AnsweredMono
	h.alive, h.sure = e.Seq, h.Return
	return h
}

// holds returns the holds of one key, in the order of their beginnings. entries are in the order of processes and
// numbers. The clocks of two processes differ by apart at most.
func (l *Logs) holds(entries []Entry, at clock, apart time.Duration) (hs []*Hold) {
	type lease struct {
		process, grant string
		fence          uint64
	}
	byLease := map[lease]*Hold{}
	forced := map[uint64]bool{}
	var taken []Call // from which holder is not known
	for i := range entries {
		e := &entries[i]
		id := lease{e.Process, e.Grant, e.Fence}
		h := byLease[id]
		switch {
		case e.Event == audit.Forced:
			if e.Outcome == audit.OK || e.Outcome == audit.Unknown {
				forced[e.Fence] = e.Fence > 0
				if asked, answered, _ := at(&e.Line); e.Fence == 0 {
					taken = append(taken, Call{asked, answered})
				}
			}
		case e.Event == audit.Acquired, e.Event == audit.HandedOver:
			if h != nil && h.reads() && h.last == nil {
				h.others++
				continue
			}
			h = begin(e, at)
			if e.From != "" {
				h.upgrades(hs)
			}
			hs, byLease[id] = append(hs, h), h
		case h != nil:
			if next := h.note(l.processes[e.Process], e, at); next != nil {
				hs, byLease[id] = append(hs, next), next
			}
		}
	}
	for _, h := range hs {
		if p := l.processes[h.Process]; h.last == nil {
			h.endsAt(p, p.closed)
			if p.closed > 0 {
				_, closed, _ := at(&p.end)
				h.Until = min(h.Until, max(h.sure, closed)) // later lines would not have been written
			}
		}
		first, _ := h.block()
		h.forced = forced[first] || slices.ContainsFunc(taken, func(call Call) bool {
			return h.Call-apart <= call.Answered && call.Asked-apart <= h.Until
		})
		if h.forced {
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

// upgrades ends the upgradeable hold of the same process that h is an upgrade of: nobody relies on it any more.
func (h *Hold) upgrades(before []*Hold) {
	for _, from := range slices.Backward(before) {
		if from.Process != h.Process {
			return
		}
		if from.Grant == h.From {
			from.Unlock = min(from.Unlock, h.Return)
			return
		}
	}
}

// note adds a line to the hold. If the holder has made the lock a shared one, note returns a hold that begins with
// that.
func (h *Hold) note(p *process, e *Entry, at clock) (next *Hold) {
	asked, answered, until := at(&e.Line)
	ok := e.Outcome == audit.OK
	share := e.Kind == audit.Shared && h.Kind != audit.Shared
	if share { // whatever comes of it, others may read from now on
		h.Unlock = min(h.Unlock, asked)
	}
	// An earlier attempt may be answered after a renewal, and the first of them may have made it a shared one.
	if from := h.from; from != nil && e.Event == audit.Extended && e.Kind == audit.Shared && asked < from.Unlock {
		from.Unlock = asked
		from.Extended = slices.DeleteFunc(from.Extended, func(c Call) bool { return c.Asked == h.Call })
	}
	switch {
	case e.Event == audit.Extended && ok && share:
		if p.whole(h.alive, e.Seq) { // or an earlier attempt may have succeeded
			h.Extended = append(h.Extended, Call{asked, answered})
		}
		h.endsAt(p, e.Seq)
		h.last = e
		next = begin(e, at)
		next.from = h
		return next
	case e.Event == audit.Extended && ok:
		h.Extended, h.Until = append(h.Extended, Call{asked, answered}), until
		h.ahead = answered - e.AnsweredMono
		h.alive, h.sure = e.Seq, max(h.sure, asked)
	case e.Event == audit.Verified && ok:
		h.Verified = append(h.Verified, Call{asked, answered})
		h.alive, h.sure = e.Seq, max(h.sure, asked)
	case e.Event == audit.Released && ok && h.others > 0: // another one still reads
		h.others--
	case e.Event == audit.Released, e.Event == audit.Lost:
		if h.last == nil {
			h.endsAt(p, e.Seq)
			h.last = e
		}
		switch {
		case e.Event == audit.Lost:
			h.Ended, h.told = answered, until
			if slept := answered - e.AnsweredMono - h.ahead; p.whole(h.alive, e.Seq) {
				h.told = min(until, max(h.Until, answered-slept)) // not before Until: some extensions have no line
			}
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
	return nil
}

// Taken reports whether the reason of a loss is one that the store has reported.
func Taken(reason string) bool {
	return slices.Contains([]locker.LostReason{locker.LostGone, locker.LostTakenOver, locker.LostSuperseded},
		locker.LostReason(reason))
}
