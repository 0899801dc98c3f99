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
// Permits are numbered from 0 to n−1. What a call acquires has a lease, which ends with its TTL if its holder crashes,
// is renewed, and is lost and noticed as lost, as that of every lock. It has a fencing token, too. There is no counter
// that could be wrong. Permits go to callers in the order in which these came, whatever their weights: who is first and
// wants more than is free keeps newcomers out.
//
// There are two ways of it. A store with Groups of backend.Capabilities has one state and one queue for all permits of
// a key, which is called {exports}#permits. On other stores, a permit of the key "exports" is one of the locks
// {exports}#0, {exports}#1 and {exports}#2, and who finds none free waits for a gate, the lock {exports}#gate. Its
// holder waits for all permits, takes the first that is returned, and opens the gate for the next caller. What differs:
//
//	                          Groups                     a lock for each permit
//	a free permit             a request                  a request with Some of backend.Capabilities, or else two
//	k permits                 one lease                  k leases, each with its request and its renewal
//	waiting                   one request for each       one for each, and at the front one for each permit; callers
//	                          caller                     of one Client wait behind each other
//	a permit is returned      the store hands it on      the same, and the next caller passes the gate in three round
//	                                                     trips
//	after a burst             as before once all are     newcomers pass the gate while a quarter of the permits is
//	                          served                     free, because those at the gate leave so slowly
//	TryLock                   overtakes nobody           the same with Some, but for that quarter; else it does
//	a waiter at the front     counts as dead as one for  keeps others out for the TTL of the gate, of three seconds or
//	that has died             a lock does                less, but ten times Look of backend.Capabilities, and as long
//	order                     that of arrival            that of arrival at the gate, on stores with Order
//	fencing tokens            greater than all before    the same with CommonTokens, else only than those before of
//	                                                     the same permit
//	Inspect, ForceRelease     the key's one name, with   the name of each permit
//	                          the owner that is meant
//
// On several nodes, each permit is a lock that a majority of them has granted. A semaphore that lets n holders in on
// each node, and asks for a majority of the nodes, admits more than n: with three nodes and two permits, three clients
// can have two nodes each. So Redlock has no Groups.
//
// MaxHold, MinHold and the TTL without renewal count from when a caller has all permits that it wants. The token of a
// holder is greater than those of all who had its permits before its call began. All holders learn from locker.Wanted
// that somebody waits, although one permit is enough. All names of a key have the same hash slot of a Redis Cluster.
//
// With a gate, callers of one Client may hand it over to each other for up to 50 ms, and the last of them keeps it for
// as long as it waits; see locker.NoLocalHandover. Newcomers that pass it do not pass a caller at the front that waits
// for permits, whatever its weight: each permit that is returned is its own.
//
// # Middleware
//
// What a call wants of a group is in its context. So a middleware passes on that context, or one derived from it. Below
// one that begins with context.Background, calls fail with locker.ErrInvalid. Below one that makes other names of all,
// each permit is a lock: its callers run beside those that have permits of the group. All callers that use a key should
// have such a middleware, or none. The first call of a Semaphore finds that out with a lock, which TryLock may find
// held, and it counts for all keys. So of the stores that a middleware chooses from, all should have Groups, or none. A
// call that finds out the contrary later fails.
//
// # Programs with different limits
//
// All programs that use a key should agree on n. If they do not, as while a new limit is rolled out, there are never
// more holders than the largest n says, and a program never takes a permit whose number is not below its own n. So a
// limit can be changed by a rolling restart: it is in force when the last program with the old limit has ended, and its
// permits are returned. Until then, a caller with the larger limit may wait although a permit is free, behind one
// that must not take it.
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
