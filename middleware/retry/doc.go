// Package retry is a middleware that repeats operations that failed because the store could not be reached, did not
// answer, or refused:
//
//	l = locker.Wrap(l, retry.New())
//
// # What is retried
//
// Faults of Lock, TryLock, Extend and Unlock are retried. A fault is an error that matches locker.ErrUnavailable, and
// thus also locker.ErrNoQuorum. A store that refuses permanently, for example because of a wrong password, cannot be
// told from one that will be available again soon, so it is retried as well.
//
// Nothing else is retried. Lock itself waits for locks that are held. Trying again does not help with a closed Client,
// a foreign key, a lost lease or an invalid argument. Renewals are not retried by this package, because they have a
// schedule of their own.
//
// # When
//
// Before each retry there is a pause. Its length is random, between 1 ms and a maximum that is 50 ms at first and
// doubles with every further retry of the call, up to 2 s. [Backoff] changes both values. This is called "full jitter"
// in Marc Brooker's "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). Of the schemes compared there, it
// needs the fewest attempts to complete the work of many competing callers.
//
// All calls through one middleware together make at most 100 retries per second; see [PerSecond]. Further retries wait
// for their turn.
//
// Retrying ends with the first of:
//
//   - The end of the context. A pause is interrupted, and the error matches the context's error and the last fault.
//   - The time set by [For], a minute by default, counted from the first fault.
//   - For Extend and Unlock, the end of the validity of the lease.
//
// The error is the last one, a [locker.Error] that matches everything it matched before. Its text has the number of
// tries.
//
// # Why retrying is safe
//
// After a fault it is unknown whether the operation took effect. Repeating it must not have a second effect.
//
// Lock and TryLock make a new attempt with a new owner token. The backend undoes the failed attempt by its own token,
// even if it arrives late. In whichever order a server executes the failed attempt, its undoing and the new attempt, at
// most one of the two attempts ends as the owner. With the same token, undoing the failed attempt would also undo the
// new one.
//
// The new attempt may find the lock taken by the failed one until that is undone. Lock waits for that. TryLock keeps
// asking for two seconds if the answer after a fault is "held".
//
// locker.LockAll and locker.TryLockAll acquire several locks in one step where the Locker can. That step is retried as
// a whole, like TryLock, so that its locks are acquired together or not at all. Where there is no such step, each lock
// is acquired and retried by itself. If one of them fails in the end, those before it are released.
//
// Extend and Unlock act on the same lease, and therefore use the same token. An extension that is executed twice sets
// the same TTL twice. It never creates a lock. A release that is executed twice deletes the lock once, and does not
// affect the next owner.
//
// Unlock is retried to learn the outcome, and for backends that do not retry releases by themselves, as most
// do. It is not retried after the end of the validity, because the lock is then free or has another owner. If a retry
// finds that the lock is gone, the earlier try may have released it in time, or the lock may have been lost. The error
// is then still the fault.
package retry
