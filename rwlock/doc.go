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
// Each holder has a lease of its own, which ends with its TTL if the holder crashes, is renewed, and is lost and
// noticed as lost, as that of every lock. There is no counter of readers that could be wrong. A lock "config" of the
// Locker below is none of all this, and excludes nobody here.
//
// There are two ways of it, as for package semaphore. A store with Kinds of backend.Capabilities has one state and one
// queue for all readers and writers of a key, a group, which is called {config}#rw. On other stores, key "config" has
// 64 slots, each of which is a lock: {config}#rw0 to {config}#rw63. A reader holds one of them, and a writer all. Who
// finds too few of them free waits for the gate, the lock {config}#rwgate, and only its holder waits for slots. A
// writer takes the lock {config}#rwintent before the gate, and opens both when it has all slots; an upgradeable holder
// has the intent lock and a slot. What differs:
//
//	                          Kinds                      64 slots
//	a free lock               a request                  a request with Some of backend.Capabilities, or else two for
//	                                                     a reader; one more for an upgradeable holder; three round
//	                                                     trips of a writer
//	a writer                  one lease                  64 leases, each with its request and its renewal
//	readers in the fleet      any number                 64 slots; more processes than that wait
//	waiting                   one request                one for the gate, and at the front one for each slot
//	the key becomes free      the store hands it on, to  the next caller passes the gate in three round trips
//	                          all readers in a row
//	TryLock                   overtakes nobody           the same with Some; else it does not look at the gate, and of
//	                                                     several calls for Exclusive, all may fail
//	a writer that waits for   keeps readers out          waits for the intent lock: readers come and go meanwhile
//	an upgradeable holder
//	a waiter at the front     counts as dead as one for  keeps others out for the TTL of the gate, of three seconds or
//	that has died             a lock does                less, but ten times Look of backend.Capabilities
//	order                     that of arrival            that of arrival at the gate, on stores with Order
//	a reader's fencing token  greater than those of all  the same with CommonTokens, else only than that of its own
//	                          writers before it          slot
//	Lease.Token               the owner value            empty for a writer and an upgradeable holder, who have several
//	Downgrade                 an extension               releases 63 slots
//	Inspect, ForceRelease     the key's one name, with   the name of each slot
//	                          the owner that is meant
//
// On several nodes, each slot is held on a majority of them, and there are no Kinds.
//
// With slots, a writer that loses a lock before it has all gives everything back and begins anew.
//
// # Who comes first
//
// Readers and a writer are served in the order of their arrival. With slots, it is that of their arrival at the gate,
// if the store serves those that wait for a lock in order: if it has Order of backend.Capabilities. On others, callers
// may be overtaken. Readers that wait one behind the other are in together. So neither class starves:
//
//   - A reader waits for the writers that came before it. It does not wait for those that wait to be upgradeable.
//   - A writer that waits is overtaken only by newcomers that share what a reader of their process has, for 50 ms on
//     most stores; see below. With slots, the readers that are at the gate already come first, too.
//   - With slots, writers that wait for the intent lock are not at the gate yet. While one is ahead of another, a
//     caller of Shared that waits overtakes the second one at most once.
//
// Upgrade passes all that wait: the caller has what the first of them waits for. Readers wait behind it.
//
// # Readers of one process
//
// Readers of the same RWLock and key share a slot, which is an entry of the group on stores with Kinds, so that a
// thousand requests of a web server are a few slots: those that come while another one asks for a slot share what it
// gets. The request goes on as long as one of them waits for it, so nobody loses a place in the queue because another
// one leaves. It has the values of the context of the first one. So hooks of package lockertrace are those of the first
// one, even if its own Lock has failed meanwhile, but for Lost, which is called for each, and for the first one as long
// as others have the slot. A middleware below that decides by such values decides for all.
// Newcomers share the slot, however long those before them read, as long as no writer waits for it:
//
//   - For 50 ms after it was acquired, they share it in any case. If the readers had to wait for it, it is 10 ms.
//   - After that, stores with TellsWanted of backend.Capabilities tell at once that somebody waits; see locker.Wanted.
//     The first newcomer asks for that, which may take two round trips.
//   - On stores with AnswersWanted, the next newcomer extends the lease of the slot, because the answer tells it. So it
//     is with Kinds where the store does not tell at once. Those that come meanwhile share the answer. If nobody waits,
//     newcomers share the slot without another request until 50 ms after the question. So readers that never pause cost
//     the store up to 20 requests per second and process.
//   - Stores with neither do not tell of callers of other processes. So the next newcomer looks at the gate when
//     newcomers have shared the slot for a twentieth of the TTL, or half a second. On the other stores, it does that,
//     too, and when it is told that somebody waits. This takes a round trip or two. If a writer waits, newcomers wait
//     behind it at the gate. If only readers wait, because all slots are taken, newcomers share the slot for as long as
//     its TTL, and then wait behind those readers.
//   - With Kinds, there is no gate. After that time, the next newcomer extends the lease, and when it is told that a
//     writer waits, it asks for another entry, behind the writer.
//
// So a writer that waits is overtaken by newcomers that share a slot for 50 ms and two round trips, and for half
// a second on stores that do not tell. It waits for as long as the last of them holds the slot. On several nodes, the
// answer of one may come too late to count, so it may take 50 ms more.
//
// Each reader has a Lease of its own. The slot is released when the last one unlocks, and lost for all when it is lost.
// Readers that share a slot have the same owner value and the same fencing token.
//
// Calls with options and locks of LockAll have slots of their own, and so have all calls if the Locker below has
// NoRenewal, MaxHold or MinHold as defaults, because these count from the acquisition. Set what all readers need, such
// as the TTL, with locker.Defaults below the RWLock:
//
//	rw := rwlock.New(locker.Defaults(locker.TTL(time.Minute))(l))
//
// MinHold keeps writers out, or everybody, for as long. After a Downgrade, everybody is kept out for the rest of it,
// and with Kinds until the renewal after that, or with NoRenewal until Unlock. MaxHold, MinHold and the TTL without
// renewal count from when a writer has the key. With slots, options apply to each, and while a writer waits for some,
// the gate and the slots that it has are renewed, and have a TTL of three seconds or less, so that it keeps others out
// for no longer if it dies. On stores with Look, this is at least ten times that, ten seconds on most, because renewals
// have a price there. Extend is about the slot, and so about all leases that share it.
//
// The number of slots is a constant, because programs that disagree would not exclude each other. Programs that use
// slots and others that use the group of the same store do not exclude each other either: a program that begins to use
// a store with Kinds needs another key, or a restart of all instances at once.
//
// # Middleware
//
// What a call wants of a group is in its context, also that of Extend. So a middleware passes on that context, or one
// derived from it. Below one that begins with context.Background, calls fail with locker.ErrInvalid, and a Downgrade
// gives the key back. Below one that makes other names of all, key "config" is 64 slots: its callers run beside those
// of the group. All callers that use a key should have such a middleware, or none. The first call of an RWLock finds
// that out with a lock, which TryLock may find held, and it counts for all keys. So of the stores that a middleware
// chooses from, all should have Kinds, or none. A call that finds out the contrary later fails. A middleware may
// acquire other locks with each, also with locker.LockAll.
//
// # Fencing tokens
//
// The token of a writer is greater than those of all readers and writers before it. With slots, it is the greatest one
// of them. On stores with Kinds or CommonTokens of backend.Capabilities, the token of a reader is greater than those of
// all writers before it. On others, it is greater than that of its own slot only: a writer's greatest token may be of
// another slot, so a resource that compares tokens can refuse a reader that came later. Readers beside each other are
// in no order. [Downgrade] keeps the token.
//
// # Not re-entrant
//
// A reader that asks again would wait for itself if a writer waits in between: the writer waits for the first slot, and
// the second call for the writer. A reader that asks for Exclusive always would. Lock fails at once with
// locker.ErrReentrant if its context carries a lease of the same key, as locker.Do gives it to its function. It may be
// of another RWLock on the same Client, if all middleware of its leases has Unwrap. Without such a context, the call
// waits until its context ends. Use Upgradeable to read first and then write.
package rwlock
