package backend

// Group says that a [Request] is about an entry of a group, and not about a lock: permits, or a shared, an upgradeable
// or an exclusive lock. The key of the request names the group, whose entries are either permits or locks. A store that
// states [Capabilities].Groups has one state and one queue for all that ask for permits of a group, and one that also
// states Kinds, for all that ask for its shared and exclusive locks.
//
// What Acquire or Queue grants is an entry: all that the request asks for, with one owner value, one fencing token, one
// TTL and one label. Extend and Release are about the entry. The rules for locks apply to it, and in addition:
//
//   - No two entries that exclude each other overlap: permits that have a number in common, or locks; see [Kind]. An
//     entry lasts until its time is over, or it is released and the time of Request.Keep is over. On a store with
//     CountsTime, what is over counts as over by itself.
//   - The token of an entry is greater than those of all entries that were granted before.
//   - Acquire grants nothing while a caller of Queue waits that came before. That counts as held, whatever is free.
//   - A step that frees something grants it to those that wait, in the order of their arrival, as far as each can have
//     all that it wants. Those behind the first that cannot wait, too. So no caller is overtaken for ever, and a caller
//     that has died waits no longer in the queue than one that waits for a lock.
//   - If the error matches ErrHeld, it is a *HeldError. It describes the holder of an entry that is in the way or, if
//     others wait, the first of them. That has nothing yet, so Remaining is 0.
//   - A Client may have any number of calls of Queue per group at a time. Request.Fences is 0.
//
// For locks, a request for [Shared] is in the way of none that wait for [Upgradeable], and passes them: in the order of
// arrival, it waits only behind those for [Exclusive]. A request with From comes before all that wait. Request.Wanted
// and NotifyWanted tell the holder of a lock if the first of those that wait, without those that are passed, would have
// to wait for it. Extend calls Request.Wanted for a lock of a group on every store that states Kinds.
type Group struct {
	// N is how many permits the group has, as far as this caller knows: those with the numbers 0 to N−1. Callers may
	// disagree, as while a new limit is rolled out. None has a permit whose number is not below its own N.
	N int

	// Weight is how many permits are wanted, 1 to N.
	Weight int

	// Kind is what is wanted. N and Weight are 0 for anything but permits.
	//
	// An Extend with the kind Shared makes a lock of another kind a shared one, and hands on what that frees. Its owner
	// value and its token stay. An Extend with another kind changes no kind, because a renewal may come late.
	Kind Kind

	// From, for Acquire and Queue of an exclusive lock, is empty, or the owner value of an upgradeable one that the caller
	// has. The exclusive one is granted once there is no other beside that. So an upgrade has no gap, and one that fails
	// or is undone leaves what the caller had: the Client releases the upgradeable one when it has both. If that is not
	// held, or ends while the call waits, the error matches ErrNotHeld.
	From string
}

// Kind is what an entry of a [Group] is.
type Kind uint8

const (
	// Permit stands for permits, Weight of N.
	Permit Kind = iota
	// Shared is a lock that others may have as well: any number of Shared and one Upgradeable.
	Shared
	// Upgradeable is a shared lock whose holder may ask for an exclusive one, which names it as From. There is one at a
	// time, beside any number of Shared.
	Upgradeable
	// Exclusive is a lock that nobody has beside it, except for the Upgradeable one of its own holder.
	Exclusive
)

// String returns the name of the kind, which is empty for permits.
func (k Kind) String() string {
	switch k {
	case Shared:
		return "shared"
	case Upgradeable:
		return "upgradeable"
	case Exclusive:
		return "exclusive"
	default:
		return ""
	}
}

// Excludes reports whether a lock of that kind is held by nobody while a lock of the other kind is. It is not for
// permits.
func (k Kind) Excludes(other Kind) bool {
	return k == Exclusive || other == Exclusive || k == Upgradeable && other == Upgradeable
}
