// Package retry is a middleware that repeats operations which failed because the store could not be reached, did not
// answer, or refused:
//
//	l = locker.Wrap(l, retry.New())
//
// # What is retried
//
// Faults, which are errors that match locker.ErrUnavailable (so locker.ErrNoQuorum, too), of Lock, TryLock, Extend and
// Unlock. Nothing else is: contention is Lock's to wait for, and a closed Client, a foreign key, a lost lease or an
// invalid argument does not get better. Renewals have a schedule of their own, which this package has no part in.
// A store that refuses for good, because the password is wrong say, cannot be told from one that will serve again soon.
//
// # When
//
// Before each retry there is a pause, drawn at random from between next to nothing (1 ms) and 50 ms, which doubles with
// every further retry of the call, up to 2 s; [Backoff] changes both. That is "full jitter", as Marc Brooker's "Exponential Backoff And Jitter" (AWS Architecture
// Blog, 2015) calls it: of the schemes compared there, it finishes the work of many competing callers with the fewest
// attempts, because it spreads them over the whole pause. All calls of one middleware together make 100 retries
// per second at most ([Budget]); what is beyond that waits for its turn.
//
// It ends with the first of
//
//   - the context. A pause is broken off, and the error matches the context's and the last fault;
//   - the time that [For] gives, a minute, from the first fault on, so with context.Background, too;
//   - for Extend and Unlock, the validity of the lease.
//
// The last error is passed on as it was, a [locker.Error] that matches all it did, with the number of tries in its text.
//
// # Why it is exact
//
// A fault leaves it open whether the operation took effect, so repeating it must not do it twice.
//
// Lock and TryLock make a new attempt with a fresh owner token. It cannot be taken for the one that failed, because the
// backend undoes that one by its own token, also if it lands late: whatever the order in which a server executes the
// attempt, its undoing and the new attempt, at most one of the two attempts ends up as the owner. With the old token the
// new attempt would be undone as well. In return the new attempt may find the lock taken by the failed one, for the
// moment until that is undone. Lock waits for that. TryLock asks again for two seconds when it is told "held" after a
// fault, before it believes it.
//
// Extend and Unlock act on the same lease, and so with the same token. An extension that is executed twice prolongs a
// lock that is held, to the same TTL; it never creates one. A release deletes what has its token, once; what comes after
// is not touched.
//
// Unlock is retried in order to learn the outcome, and for backends that do not go on by themselves as Redis's do. After the end of the
// validity that is of no use: the lock is free, or somebody else's. If the retry finds the lock gone, the earlier try may have
// released it in time or too late; the error is still the fault, and says so.
package retry
