// Package rwlock lets many readers or one writer in the whole fleet hold a key at a time, on any [locker.Locker].
//
//	rw := rwlock.New(l) // one for the whole process
//	err := locker.Do(ctx, rw.Shared(), "config", read)
//	err = locker.Do(ctx, rw.Exclusive(), "config", migrate)
//
// [RWLock.Shared], [RWLock.Exclusive] and [RWLock.Upgradeable] return Lockers for the same keys, so that all that works
// with Lockers works with them: locker.Do and TryDo, options, middleware, and election.Run. [Downgrade] makes a writer
// a reader, and [Upgrade] an upgradeable reader a writer, without a gap in which another writer could come.
//
// # How it works
//
// A key has 64 slots, each of which is a lock of its own: key "config" has {config}#rw0 to {config}#rw63. A reader
// holds one of them, and a writer all. So each holder has a lease of its own, which ends with its own TTL if the holder
// crashes, is renewed, and is lost and noticed as lost, as every lock is. A writer's lease is lost when one of its
// slots is. There is no counter of readers that could be wrong, and no list of them that a clock must clean up. All
// names have the same hash slot of a Redis Cluster. A lock "config" of the Locker below is none of them, and excludes
// nobody here.
//
// A lock that is free takes one round trip on stores with Some of backend.Capabilities. Others wait for the gate, the
// lock {config}#rwgate. Only the holder of the gate waits for slots, and while it waits, nobody overtakes it. A writer
// takes the lock {config}#rwintent before the gate, waits for all slots at the same time, and opens both when it has
// them. If it loses one of these locks meanwhile, it gives everything back and begins anew. An upgradeable holder has
// the intent lock and a slot, and Upgrade waits for the gate and the other slots.
//
// An upgradeable lock takes a round trip more than a shared one. On other stores, a reader takes two round trips and a
// writer three. TryLock there does not look at the gate: it may overtake those that wait, and of several calls for
// Exclusive all may fail, because they have taken slots from each other. On several nodes, each slot is held on a
// majority of them.
//
// # Who comes first
//
// Readers and a writer are served in the order of their arrival at the gate, if the store serves those that wait for
// a lock in order: if it has Order of backend.Capabilities. On others, callers may be overtaken. Readers that wait one
// behind the other are in together. So neither class starves:
//
//   - A reader waits for the writers that were at the gate before it. There is at most one at a time.
//   - A writer that has the intent lock is overtaken only by readers that are at the gate already, and by newcomers
//     that share a slot, for 50 ms on most stores, as described below.
//   - Writers that wait for the intent lock are not at the gate yet. While one writer is ahead of another, a caller of
//     Shared that waits overtakes the second one at most once. An upgradeable holder has the intent lock as long as its
//     lease, and readers come and go meanwhile.
//
// # Readers of one process
//
// Readers of the same RWLock and key share a slot, so that a thousand requests of a web server are a few slots: those
// that come while another one asks for a slot share what it gets. The request goes on as long as one of them waits for
// it, so nobody loses a place in the queue because another one leaves. It has the values of the context of the first
// one. So hooks of package lockertrace are those of the first one, even if its own Lock has failed meanwhile, but for
// Lost, which is called for each, and for the first one as long as others have the slot. A middleware below that
// decides by such values decides for all.
// Newcomers share the slot, however long those before them read, as long as no writer waits for it:
//
//   - For 50 ms after it was acquired, they share it in any case. If the readers had to wait for it, it is 10 ms.
//   - After that, stores with TellsWanted of backend.Capabilities tell at once that somebody waits; see locker.Wanted.
//     The first newcomer asks for that, which may take two round trips.
//   - On stores with AnswersWanted, the next newcomer extends the lease of the slot, because the answer tells it.
//     Those that come meanwhile share the answer. If nobody waits, newcomers share the slot without another request
//     until 50 ms after the question. So readers that never pause cost the store up to 20 requests per second and
//     process.
//   - Stores with neither do not tell of callers of other processes. So the next newcomer looks at the gate when
//     newcomers have shared the slot for a twentieth of the TTL, or half a second. On the other stores, it does that,
//     too, and when it is told that somebody waits. This takes a round trip or two. If a writer waits, newcomers wait
//     behind it at the gate. If only readers wait, because all slots are taken, newcomers share the slot for as long as
//     its TTL, and then wait behind those readers.
//
// So a writer that waits for slots is overtaken by newcomers that share one for 50 ms and two round trips, and
// for half a second on stores that do not tell. It waits for as long as the last of them holds the slot. On several
// nodes, the answer of one may come too late to count, so it may take 50 ms more.
//
// Each reader has a Lease of its own. The slot is released when the last one unlocks, and lost for all when it is lost.
// Readers that share a slot have the same owner value and the same fencing token.
//
// At most 64 slots are read at once in the whole fleet. More processes than that wait. The number is a constant,
// because programs that disagree would not exclude each other.
//
// Calls with options and locks of LockAll have slots of their own, and so have all calls if the Locker below has
// NoRenewal, MaxHold or MinHold as defaults, because these count from the acquisition. Set what all readers need, such
// as the TTL, with locker.Defaults below the RWLock:
//
//	rw := rwlock.New(locker.Defaults(locker.TTL(time.Minute))(l))
//
// Options apply to each slot, so MinHold keeps writers out, or everybody, for as long. MaxHold, MinHold and the TTL
// without renewal count from when a writer has all slots. While it waits for some, the gate and the slots that it has
// are renewed, and have a TTL of three seconds or less, so that it keeps others out for no longer if it dies. On stores
// with Look, this is at least ten times that, ten seconds on most, because renewals have a price there. Extend is about
// the slot, and so about all leases that share it.
//
// # Fencing tokens
//
// The token of a writer is the greatest one of its slots. It is greater than those of all readers and writers before
// it. On stores with CommonTokens of backend.Capabilities, the token of a reader is greater than those of all writers
// before it. On others, it is greater than that of its own slot only: a writer's greatest token may be of another slot,
// so a resource that compares tokens can refuse a reader that came later. Readers beside each other are in no order.
// [Downgrade] keeps the slot with the greatest token.
//
// # Not re-entrant
//
// A reader that asks again would wait for itself if a writer waits in between: the writer waits for the first slot, and
// the second call for the writer. A reader that asks for Exclusive always would. Lock fails at once with
// locker.ErrReentrant if its context carries a lease of the same key, as locker.Do gives it to its function. It may be
// of another RWLock on the same Client, if all middleware of its leases has Unwrap. Without such a context, the call
// waits until its context ends. Use Upgradeable to read first and then write.
package rwlock
