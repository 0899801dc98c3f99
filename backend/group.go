package backend

// Group says that a [Request] is about permits of a group, and not about a lock. The key of the request names the
// group. A store that states [Capabilities].Groups has one state and one queue for all that ask for permits of a group.
//
// What Acquire or Queue grants is an entry: all permits that the request asks for, with one owner value, one fencing
// token, one TTL and one label. Extend and Release are about the entry. The rules for locks apply to it, and in
// addition:
//
//   - No two entries have a permit in common until the time of one of them is over, or it is released and the time of
//     Request.Keep is over. On a store with CountsTime, that counts as over by itself.
//   - The token of an entry is greater than those of all entries that were granted before.
//   - Acquire grants nothing while a caller of Queue waits that came before. That counts as held, whatever is free.
//   - A step that frees permits grants them to those that wait, in the order of their arrival, as far as each can have
//     all that it wants. Those behind the first that cannot wait, too. So no caller is overtaken for ever, and a caller
//     that has died waits no longer in the queue than one that waits for a lock.
//   - If the error matches ErrHeld, it is a *HeldError. It describes the holder of a permit or, if others wait, the
//     first of them. That has nothing yet, so Remaining is 0.
//   - A Client may have any number of calls of Queue per group at a time. Request.Fences is 0.
type Group struct {
	// N is how many permits the group has, as far as this caller knows: those with the numbers 0 to N−1. Callers may
	// disagree, as while a new limit is rolled out. None has a permit whose number is not below its own N.
	N int

	// Weight is how many permits are wanted, 1 to N.
	Weight int
}
