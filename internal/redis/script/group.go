package script

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

// Wants says that an attempt is about something of a group: how many permits the group has as far as the caller knows,
// and how many of them the caller wants, or the kind of a lock.
type Wants struct {
	N, Weight int
	Kind      Kind
	From      string // the owner of the upgradeable lock of which this is the upgrade
}

// Kind is that of a lock of a group, as it is in the state; see groupentry.lua.
type Kind string

// The kinds of locks.
const (
	Shared      Kind = "s"
	Upgradeable Kind = "u"
	Exclusive   Kind = "x"
)

// text is what a waiter has in front of its channel.
func (w *Wants) text() string {
	if w.Kind != "" {
		return string(w.Kind) + ":" + w.From
	}
	return strconv.Itoa(w.N) + ":" + strconv.Itoa(w.Weight)
}

// group returns the keys of a group that its scripts share.
func (k Keys) group() []string { return []string{k.Lock, k.Fence(), k.Entries(), k.Wait(), k.Queue()} }

// queueForEntry is Enqueue for a group.
func (a Attempt) queueForEntry(ttl, positionTTL time.Duration, ticket int64, channel string) Command {
	numbers := strings.Join([]string{
		milliseconds(ttl), milliseconds(positionTTL), strconv.FormatInt(ticket, 10), a.Wants.text(),
	}, ":")
	keys := a.Guard.keys(slices.Concat(a.group(), a.places(a.Wants.Kind != ""))...)
	return groupQueueScript.of(a.Guard).call(keys, a.text(), numbers+a.Guard.number()+":"+channel).granting(handsOver)
}

// claimEntry is Claim for a group. A Redis Cluster needs no key that may be missing while the slot moves.
func (a Attempt) claimEntry(ttl time.Duration) Command {
	keys := a.Guard.keys(a.Lock, a.Entries())
	return groupClaimScript.of(a.Guard).call(keys, a.text(), milliseconds(ttl)+a.Guard.number()).granting(handsOver)
}

// extendEntry is Extend for a group. With a ttl of 0 it is Verify.
func (a Attempt) extendEntry(ttl time.Duration, fence uint64) Command {
	c := groupExtendScript.call([]string{a.Lock, a.Entries()}, a.text(), milliseconds(ttl), counterText(fence))
	if ttl > 0 {
		c = c.granting(extends)
	}
	return c
}

// Share is Extend for a lock of a group, which becomes a shared one. [ReadOwned] reads the reply. If it is Unfinished,
// others have to be granted what that frees, and the command is to be repeated.
func (a Attempt) Share(ttl time.Duration, fence uint64) Command {
	args := string(Shared) + ":" + milliseconds(ttl) + ":" + counterText(fence) + a.Guard.number()
	return groupReleaseScript.of(a.Guard).call(a.Guard.keys(a.group()...), a.text(), args).granting(extends)
}

// InspectGroup asks for the state of a group: of the entry whose time is over first, of those whose owners begin with
// owner. At most that many waiters are counted. With 1, nothing else is looked at, and only those count that may have
// to wait for the entry of owner. [ReadState] reads the reply.
func (k Keys) InspectGroup(owner string, waiters int) Command {
	return groupInspectScript.call(k.group(), owner, strconv.Itoa(waiters))
}

// ForceEntry is Force for the entry with that value.
func (k Keys) ForceEntry(value string, tombstone time.Duration, g *Guard) Command {
	args := []string{milliseconds(tombstone) + ":" + value}
	if g != nil {
		args = append(args, g.rest)
	}
	return groupForceScript.of(g).call(g.keys(k.group()...), args...)
}

// readGroup reads the reply of groupinspect.lua.
func readGroup(r []drivers.Reply) (State, error) {
	s, err := ReadState(r[:6])
	all, ok := r[6].([]drivers.Reply)
	if err != nil || !ok || len(all)%3 != 0 {
		return State{}, unexpected(r)
	}
	for i := 0; i < len(all); i += 3 {
		has, _ := all[i+1].(string)
		e, err := ReadState([]drivers.Reply{int64(1), all[i], r[2], int64(0), r[4], all[i+2]})
		if err != nil {
			return State{}, err
		}
		e.Kind, e.Permits = entryOf(has)
		if s.Entries = append(s.Entries, e); e.Value == s.Value {
			s.Kind, s.Permits = e.Kind, e.Permits
		}
	}
	return s, nil
}

// readEntry reads what groupqueue.lua and groupclaim.lua reply when they grant. It returns false for other replies.
func readEntry(reply drivers.Reply) (p Position, ok bool) {
	if r, _ := reply.([]drivers.Reply); len(r) == 4 && r[0] == int64(3) && r[3] == int64(1) {
		reply, p.More = r[:3], true
	}
	n, text, err := labelled(reply)
	switch {
	case err != nil || text == "":
		return Position{}, false
	case len(n) == 2 && n[0] == 3:
		p.Whole = true
	case len(n) == 3 && n[0] == 1:
		p.Left = span(n[2])
	default:
		return Position{}, false
	}
	p.Status, p.Counter = Granted, uint64(max(0, n[1]))
	p.Kind, p.Permits = entryOf(text)
	return p, p.Counter > 0 && (p.Kind != "" || p.Permits != nil)
}

// entryOf reads what an owner has of a group.
func entryOf(text string) (Kind, []int) {
	switch kind := Kind(text); kind {
	case Shared, Upgradeable, Exclusive:
		return kind, nil
	}
	return "", numbersOf(text)
}

// maxPermits bounds the numbers that a reply can make a program allocate.
const maxPermits = 1 << 16

// numbersOf reads numbers such as "0-9,15". It returns nil if text has none, or is something else.
func numbersOf(text string) (numbers []int) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		b := a
		if isRange && err == nil {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 0 || b < a || b >= maxPermits || len(numbers) > 0 && a <= numbers[len(numbers)-1] {
			return nil
		}
		for ; a <= b; a++ {
			numbers = append(numbers, a)
		}
	}
	return numbers
}
