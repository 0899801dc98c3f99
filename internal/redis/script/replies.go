package script

import (
	"fmt"
	"math"
	"time"

	"github.com/golocker/locker/drivers"
)

// Status says what a script has done, or why it has not.
type Status uint8

// The statuses that replies decode to.
const (
	Unread         Status = iota // the reply was not from the script
	Granted                      // the caller has the lock, or the turn
	Done                         // the caller's lock was raised, extended, verified or released
	Waiting                      // another owner has the lock, or nobody has it yet
	GivenUp                      // the attempt was released before it was executed
	NotALock                     // the key holds something that is not a lock
	Duplicate                    // the server has the attempt's lock under the number of another node
	Gone                         // nobody holds the lock
	Superseded                   // a newer token was issued
	TakenOver                    // another owner has the lock, or it was taken away by force
	Resting                      // the server may have forgotten locks, and grants none for a while
	OtherGuard                   // the server has a marker of clients with another guard
	NoGuard                      // the server does not say what the guard needs to know
	Apart                        // a program has a lock for a place of the group
	NotUpgradeable               // the caller of an upgrade has no upgradeable lock any more
)

// maxNode is greater than the number of any node.
const maxNode = 64

// Acquired is the reply to Acquire: Granted, Waiting, GivenUp, NotALock or Duplicate, or with a guard Resting,
// OtherGuard or NoGuard. For that to Resume see ReadResumed.
type Acquired struct {
	Status  Status
	Counter uint64        // the counter granted, or the present one if another owner has the lock
	Left    time.Duration // Waiting: the remaining time of the lock; otherwise see guarded
	Owner   string        // Waiting: the beginning of the owner's token, or of another library's value
	Label   string        // Waiting: the owner's label
	Node    int           // Duplicate: which one
}

// ReadAcquired reads the reply of acquire.lua.
func ReadAcquired(reply drivers.Reply) (Acquired, error) {
	switch n, _ := reply.(int64); {
	case n > 0:
		return Acquired{Status: Granted, Counter: uint64(n)}, nil
	case n == -1:
		return Acquired{Status: GivenUp}, nil
	case n == -2:
		return Acquired{Status: NotALock}, nil
	case n < -2 && n >= -2-maxNode:
		return Acquired{Status: Duplicate, Node: int(-2 - n)}, nil
	}
	r, _ := reply.([]drivers.Reply)
	integer := func(i int) int64 {
		if i < len(r) {
			if n, ok := r[i].(int64); ok {
				return n
			}
		}
		return math.MinInt64
	}
	if integer(0) == 0 && len(r) == 5 {
		a := Acquired{Status: Waiting, Counter: uint64(max(0, integer(2))), Left: span(integer(1))}
		a.Owner, _ = r[3].(string)
		a.Label, _ = r[4].(string)
		return a, nil
	}
	if s, left := guarded(integer(0), integer(1)); s != Unread && len(r) == 2 {
		return Acquired{Status: s, Left: left}, nil
	}
	return Acquired{}, unexpected(reply)
}

// ReadResumed reads the reply of resume.lua: Granted, Gone or TakenOver, or with a guard Resting, OtherGuard or
// NoGuard.
func ReadResumed(reply drivers.Reply) (Acquired, error) {
	switch reply {
	case int64(0):
		return Acquired{Status: Gone}, nil
	case int64(-1):
		return Acquired{Status: TakenOver}, nil
	}
	a, err := ReadAcquired(reply)
	switch a.Status {
	case Granted, Resting, OtherGuard, NoGuard, Unread:
		return a, err
	default:
		return Acquired{}, unexpected(reply)
	}
}

// Owned is the reply to Raise, Extend, Verify, Export, Release and Force: Done, Duplicate, Gone, Superseded or
// TakenOver.
type Owned struct {
	Status Status
	Node   int // Duplicate: which one
	// Unfinished: many waiters in the queue are dead, and no live one was found yet. The command is to be repeated.
	Unfinished bool
	// Waited: others wait for the lock. After a release, one of them was notified. After an extension, they may have left.
	Waited bool
}

// Bits that releases and extensions add to their reply.
const (
	unfinished = 8
	waited     = 16
)

// ReadOwned reads the reply of raise.lua, extend.lua, verify.lua, export.lua, release.lua, handover.lua,
// turnrelease.lua and force.lua. Unfinished and Waited are valid even with an error.
func ReadOwned(reply drivers.Reply) (Owned, error) {
	r, isInt := reply.(int64)
	if !isInt {
		return Owned{}, unexpected(reply)
	}
	o := Owned{Unfinished: r&unfinished != 0, Waited: r&waited != 0}
	r &^= unfinished | waited
	switch k := r / 32; {
	case r == 0:
		o.Status = Gone
	case r == 1, r == 2:
		o.Status = Done
	case r == 3:
		o.Status = Superseded
	case r == 4:
		o.Status = TakenOver
	case 0 < k && k <= maxNode && (r%32 == 0 || r%32 == 1 || r%32 == 3):
		o.Status, o.Node = Duplicate, int(k)
	default:
		return o, unexpected(reply)
	}
	return o, nil
}

// Position is the reply to Enqueue and Claim: Granted, Waiting, GivenUp or NotALock, or with a guard Resting,
// OtherGuard or NoGuard.
type Position struct {
	Status  Status
	Counter uint64        // Granted: the token
	Fences  int           // Granted: how many tokens there are from Counter on, as far as the reply says; 0: one
	Whole   bool          // Granted: for the whole TTL from now
	Left    time.Duration // the remaining time of the lock; 0: not known; with a guard see guarded
	Rank    int           // how many waiters are before it; a new waiter gets at most 1; -1: it does not wait
	Ticket  int64
	// More: ask again at once, because the server has skipped many dead waiters without finding a live one. In the answer
	// to one that waits no longer, of a group: others are to be told that they have something now.
	More  bool
	Poll  bool   // Waiting: ask often, because another library has the lock, whose release notifies nobody
	Label string // Waiting: the owner's label
	// Permits has the numbers that were granted, or Kind is that of the lock, if the attempt is about a group.
	Permits []int
	Kind    Kind
	// Behind: others wait for something of the group before this one, and Label is that of the first of them.
	Behind bool
}

// polls is what a script adds to the code of its reply if the waiter has to poll. It is POLL of queue.lua.
const polls = 2

// behind is the code of a reply to one that waits for something of a group behind others.
const behind = 4

// ReadPosition reads the reply of enqueue.lua and claim.lua, and of groupqueue.lua and groupclaim.lua.
func ReadPosition(reply drivers.Reply) (Position, error) {
	if c, ok := reply.(int64); ok && c > 0 {
		return Position{Status: Granted, Counter: uint64(c), Whole: true}, nil
	}
	if p, ok := readEntry(reply); ok {
		return p, nil
	}
	n, label, err := labelled(reply)
	switch {
	case err != nil:
		return Position{}, err
	case len(n) == 3 && n[0] == 1 && n[1] > 0:
		return Position{Status: Granted, Counter: uint64(n[1]), Left: span(n[2])}, nil
	case len(n) == 4 && n[0] == 1 && n[1] > 0 && n[3] > 0:
		return Position{Status: Granted, Counter: uint64(n[1]), Left: span(n[2]), Fences: int(n[3])}, nil
	case len(n) == 5 && (n[0]&^polls == 0 || n[0] == behind):
		p := Position{Status: Waiting, Left: remaining(n[1]), Rank: int(n[2]), Ticket: n[4], More: n[3] == 0}
		p.Poll, p.Behind, p.Label = n[0] == polls, n[0] == behind, label
		return p, nil
	case len(n) == 1 && n[0] == 0:
		return Position{Status: Waiting}, nil
	case len(n) == 1 && n[0] == -1:
		return Position{Status: GivenUp}, nil
	case len(n) == 1 && n[0] == -2:
		return Position{Status: NotALock}, nil
	case len(n) == 1 && n[0] == -6:
		return Position{Status: Apart}, nil
	case len(n) > 0 && n[0] == -7:
		return Position{Status: NotUpgradeable, More: len(n) > 1}, nil
	case len(n) == 2:
		if s, left := guarded(n[0], n[1]); s != Unread {
			return Position{Status: s, Left: left}, nil
		}
	}
	return Position{}, unexpected(reply)
}

// Standing is the reply to Ask: Granted or Waiting.
type Standing struct {
	Status Status
	Left   time.Duration // the remaining time of the lock; 0: free
	// Waiting: how many waiters are before it, when to ask again at the latest, and the ticket that restores its
	// position if the server forgets it.
	Rank   int
	Again  time.Duration
	Ticket int64
	Poll   bool   // ask often, because another library has the lock, whose release notifies nobody
	Label  string // the owner's label
}

// ReadStanding reads the reply of turn.lua.
func ReadStanding(reply drivers.Reply) (Standing, error) {
	n, label, err := labelled(reply)
	switch {
	case err != nil:
		return Standing{}, err
	case len(n) == 2 && n[0]&^polls == 1:
		return Standing{Status: Granted, Left: remaining(n[1]), Poll: n[0] != 1, Label: label}, nil
	case len(n) == 5 && n[0]&^polls == 0:
		s := Standing{Status: Waiting, Left: remaining(n[1]), Rank: int(n[2]), Again: span(n[3]), Ticket: n[4], Label: label}
		s.Poll = n[0] == polls
		return s, nil
	}
	return Standing{}, unexpected(reply)
}

// State is the reply to Inspect: Gone, TakenOver or NotALock.
type State struct {
	Status  Status
	Left    time.Duration // the remaining time of the lock
	Counter uint64        // the owner's; if the value is not that of a lock, the one that all locks of the slot share
	Waiting int
	Held    time.Duration // how long the owner has had the lock, according to the counter; 0: not known
	Value   string        // the whole value of the lock; empty: nobody has it
	Permits []int         // of a group: the owner's
	Kind    Kind          // of a group: that of the owner's lock
	Entries []State       // of a group: all that have something
}

// ReadState reads the reply of inspect.lua, and of groupinspect.lua.
func ReadState(reply drivers.Reply) (State, error) {
	r, _ := reply.([]drivers.Reply)
	if len(r) == 7 {
		return readGroup(r)
	}
	if len(r) != 6 {
		return State{}, unexpected(reply)
	}
	value, ok := r[5].(string)
	n, err := integers(r[:5])
	if err != nil || !ok {
		return State{}, unexpected(reply)
	}
	s := State{Status: Gone, Counter: uint64(max(0, n[2])), Waiting: int(n[3])}
	switch n[0] {
	case 2:
		s.Status = NotALock
	case 1:
		s.Status, s.Value, s.Left = TakenOver, value, span(n[1])
		v, ours := ReadValue(value)
		if !ours {
			break
		}
		s.Counter = v.Counter
		if held := n[4] - int64(v.Counter); v.Counter > 0 && held >= 0 {
			s.Held = time.Duration(held) * time.Microsecond
		}
	}
	return s, nil
}

// ReadRaised returns nil if the counter was raised.
func ReadRaised(reply drivers.Reply) error {
	if reply == int64(1) {
		return nil
	}
	return unexpected(reply)
}

// guarded reads what guard.lua returns, or returns Unread. left is for how long the server rests, or, for OtherGuard,
// for how long it would rest for the other clients.
func guarded(code, ms int64) (s Status, left time.Duration) {
	switch code {
	case -3:
		return Resting, span(ms)
	case -4:
		return OtherGuard, span(ms)
	case -5:
		return NoGuard, 0
	}
	return Unread, 0
}

// ReadTouched reads the reply to Touch and Trust: Granted, if the server grants locks, or Resting, OtherGuard or
// NoGuard.
func ReadTouched(reply drivers.Reply) (s Status, left time.Duration, err error) {
	if reply == int64(0) {
		return Granted, 0, nil
	}
	n, err := integers(reply)
	if err == nil && len(n) == 2 {
		s, left = guarded(n[0], n[1])
	}
	if s == Unread {
		return Unread, 0, unexpected(reply)
	}
	return s, left, nil
}

// unexpected returns the refusal if the server has refused the command. Otherwise it returns an error for a reply that
// the scripts do not give. Such a reply comes from a driver that does not normalise replies, or from a proxy. The error
// does not show its text, which may contain a token.
func unexpected(reply drivers.Reply) error {
	if e, ok := reply.(drivers.ServerError); ok {
		return e
	}
	return fmt.Errorf("unexpected reply of type %T: not from the lock script, or not normalised by the driver", reply)
}

// refusals are the error codes that Redis returns instead of executing a command.
var refusals = map[string]bool{
	"NOSCRIPT": true, "READONLY": true, "LOADING": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "MOVED": true,
	"ASK": true, "TRYAGAIN": true, "CROSSSLOT": true, "NOAUTH": true, "WRONGPASS": true, "OOM": true, "MISCONF": true,
	"NOREPLICAS": true, "BUSY": true,
}

// IsRefusal reports whether e proves that the script was not executed. Other codes are doubtful, also NOPERM, because a
// script may be stopped after its first commands.
func IsRefusal(e drivers.ServerError) bool { return refusals[e.Code()] }

// maxSpan is the largest time that is returned. It is less than the maximum of a Duration, so that callers can add to
// it. Keys of other programs may live longer.
const maxSpan = 100 * 365 * 24 * time.Hour

// span converts a time in ms from a reply. A negative time is 0.
func span(ms int64) time.Duration {
	return time.Duration(min(max(0, ms), maxSpan.Milliseconds())) * time.Millisecond
}

// remaining converts a reply of PTTL. It returns 0 only if there is no key. PTTL returns 0 for a key in its last
// millisecond. That key still exists, and a waiter has to look again when it is gone.
func remaining(ms int64) time.Duration {
	if ms == 0 {
		ms = 1
	}
	return span(ms)
}

// labelled returns the elements of a reply that consists of integers, and of a label at its end if there is one.
func labelled(reply drivers.Reply) (n []int64, label string, err error) {
	if r, _ := reply.([]drivers.Reply); len(r) > 0 {
		if text, ok := r[len(r)-1].(string); ok {
			label, reply = text, r[:len(r)-1]
		}
	}
	n, err = integers(reply)
	return n, label, err
}

// integers returns the elements of a reply that consists of integers only.
func integers(reply drivers.Reply) (n []int64, err error) {
	r, ok := reply.([]drivers.Reply)
	for _, x := range r {
		i, isInt := x.(int64)
		n = append(n, i)
		ok = ok && isInt
	}
	if !ok {
		return nil, unexpected(reply)
	}
	return n, nil
}

// Page is some of the keys of a server; see scan.lua.
type Page struct {
	ID     string
	Line   string
	Cursor string
	Keys   []string
}

// ReadPage reads the reply to Scan.
func ReadPage(reply drivers.Reply) (p Page, err error) {
	if refusal, ok := reply.(drivers.ServerError); ok {
		return p, refusal
	}
	r, _ := reply.([]drivers.Reply)
	texts := make([]string, len(r))
	for i := range r {
		text, ok := r[i].(string)
		if !ok {
			return p, unexpected(reply)
		}
		texts[i] = text
	}
	if len(texts) < 3 || texts[0] == "" {
		return p, unexpected(reply)
	}
	return Page{texts[0], texts[1], texts[2], texts[3:]}, nil
}
