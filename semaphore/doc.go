// Package semaphore lets at most n callers in the whole fleet hold a key at a time, on any [locker.Locker].
//
//	exports := semaphore.New(l, 3)
//	err := locker.Do(ctx, exports, "exports", func(ctx context.Context) error {
//		return export(ctx) // in at most three processes and goroutines at a time
//	})
//
// A [Semaphore] is a Locker, so that all that works with Lockers works with it: locker.Do and TryDo, options,
// middleware, and election.Run, which then has up to n leaders.
//
// # How it works
//
// A permit is a lock of its own: key "exports" has the locks {exports}#0, {exports}#1 and {exports}#2. So each permit
// has its own lease, which ends with its TTL if its holder crashes, is renewed, is lost and noticed as lost, and has a
// fencing token, as every lock has. There is no counter that could be wrong. On several nodes, each permit is a lock
// that a majority of them has granted, and costs what such a lock costs. A semaphore that lets n holders in on each
// node, and asks for a majority of the nodes, admits more than n: with three nodes and two permits, three clients can
// have two nodes each.
//
// A caller that finds a permit free takes it, in one round trip on stores with Some of backend.Capabilities. Others
// need two: one for the gate, which is the lock {exports}#gate, and one for a permit. A caller that finds no permit
// free waits for the gate. Its holder waits for all permits, takes the first that is returned, and opens the gate for
// the next caller. So on stores with Order of backend.Capabilities, permits go to the callers in the order in which
// they came to the gate. But callers of one Client may hand the gate over to each other for up to 50 ms, and the last
// of them keeps it for as long as it waits; see locker.NoLocalHandover. On stores without Order, a caller may be
// overtaken.
//
// The fencing token of a holder is the greatest one of its permits. On stores with CommonTokens, it is greater than
// those of all who had their permits before its call began. On others, tokens grow only from holder to holder of one
// permit, so those of different permits are in no order.
//
// A caller that waits passes the gate in three round trips. So after a burst, newcomers can come faster than those at
// the gate leave, although permits are free. Where a free permit takes one round trip, newcomers therefore do not wait
// behind the gate while a quarter of the permits is free beside those that they want. They do not pass a caller at the
// front that waits for permits, whatever its weight: each permit that is returned is its own. On other stores, all
// callers go through the gate, so a key has a permit in three round trips at most.
//
// MaxHold, MinHold and the TTL without renewal count from when a caller has all permits that it wants. While it waits,
// the gate and the permits that it has are renewed, and have a TTL of three seconds or less, so that it keeps others
// out for no longer if it dies, whatever its own TTL is. On stores with Look, this is at least ten times that, ten
// seconds on most, because renewals have a price there. The queue of a store may take some
// seconds more to pass over a dead caller, as for any lock.
//
// All holders learn from locker.Wanted that somebody waits, although one permit is enough. All names have the same hash
// slot of a Redis Cluster.
//
// # Programs with different limits
//
// All programs that use a key should agree on n. If they do not, as while a new limit is rolled out, there are never
// more holders than the largest n says, and a program never takes a permit whose number is not below its own n. So a
// limit can be changed by a rolling restart: it is in force when the last program with the old limit has ended, and its
// permits are returned. Until then, a caller with the larger limit may wait although a permit is free, behind one at
// the gate that must not take it.
//
// # The same key without a Semaphore
//
// A lock that the Locker below has given for "exports" is none of the permits, so its holder runs beside all of theirs,
// also if n is 1. A program that changes from a Locker to a Semaphore needs another key, or a restart of all instances
// at once, because otherwise the old instances run one more than n.
//
// # Not re-entrant
//
// A holder that calls Lock again needs a second permit. If its context carries so many permits that too few are left,
// Lock fails with locker.ErrReentrant. Otherwise it waits behind those that came before, and then for the others. If
// one of those needs the holder's permit, because of its weight, they wait for each other, and so do all holders that
// ask for more while they hold the last permits. Ask for what is needed with one call; see [Semaphore.Weight].
package semaphore
