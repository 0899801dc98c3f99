// Package logging is a middleware that logs what happens to locks, with log/slog:
//
//	l = locker.Wrap(l, logging.New(logger))
//
// It is meant for production. An event that needs attention is logged once, as a warning, and not once for each call
// that it affects. Errors that are returned to callers are logged only at level Debug, so that nothing is reported
// twice. Nothing is logged at level Error.
//
//	level  message                   when
//	Warn   lock lost                 a lease ended without Unlock, or Unlock found that the lock was no longer
//	                                 held; once per lease, with the reason. Info if the Client was closed
//	Warn   lock in doubt             a renewal failed after the acquisition or after a success; the lease is
//	                                 still valid
//	Info   lock renewed again        a renewal succeeded after "lock in doubt"
//	Warn   lock store unavailable    a call or an attempt failed because of the store, for the first time
//	Info   lock store answers again  the store answers after "lock store unavailable"
//	Warn   lock node unavailable     one of several nodes failed, for the first time; not logged for
//	                                 a node that is only slower than the others
//	Info   lock node answers again   the node answers after "lock node unavailable"
//	Info   still waiting for lock    a call has waited for a minute (LongWait); once per call
//	Info   lock acquired             such a call has acquired the lock
//	Debug  lock acquired, lock not acquired, waiting for lock, lock extended, lock not extended,
//	       lock renewed, lock not renewed, lock released, lock not released
//	Debug  locks acquired, locks not acquired
//	                                 a call of locker.LockAll or locker.TryLockAll acquired its locks in one step,
//	                                 or found one of them held. Otherwise each lock is logged by itself
//
// A store or a node answers again when it has answered and the last failure was at least five seconds ago. If it fails
// and recovers repeatedly, it causes at most two lines in five seconds. A call that failed because its own context
// ended does not count as a failure of the store.
//
// The attributes are key, keys (how many), fence, reason, holder, node and err, and the durations took, held, waited,
// remaining and down, which is the time from the first failure to the last. The first 64 bytes of the key are logged;
// [Key] replaces or omits it. The holder is the label of the holder that the call has seen last; see locker.Label. A
// call that waits in a store's queue sees it when it begins to wait. Owner tokens are never logged, because they are
// sufficient to release a lock.
//
// Records carry the context of the call, so that handlers can find a trace ID in it. The records of a lease carry the
// context of the call that acquired it.
//
// Inside package retry, the middleware sees every attempt, and warns when the store becomes unavailable. Outside of it,
// it only sees the results, and warns when a call gives up. Inside is better.
package logging
