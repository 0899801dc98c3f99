// Package logging is a middleware that logs, with log/slog, what happens to locks:
//
//	l = locker.Wrap(l, logging.New(logger))
//
// It is meant to be left on in production. What somebody should look at is a warning, and comes once for each thing that
// happens, not once for each call that suffers from it. What callers are told by an error is theirs to judge, and is
// logged for debugging only, so that nothing is reported twice. Nothing is logged as an error.
//
//	level  message                            when
//	Warn   lock lost                          a lease ended without Unlock, or Unlock found the lock gone: with the reason,
//	                                          once per lease. If the reason is that the Client was closed: Info
//	Warn   lock in doubt                      a renewal has failed, the first in a row of this lease; it is still valid
//	Info   lock renewed again                 the end of that
//	Warn   lock store unavailable             the first call, or attempt, that failed because of the store
//	Info   lock store answers again           the end of that
//	Warn   lock node unavailable              the same for one node of several (Redlock), by name; a node that is just
//	Info   lock node answers again            slower than the others is in order
//	Info   still waiting for lock             once, after a minute ([LongWait]); its end is
//	Info   lock acquired                      in that case, too
//	Debug  lock acquired, lock not acquired, waiting for lock, lock extended, lock not extended, lock renewed,
//	       lock not renewed, lock released, lock not released
//
// A store or a node counts as answering again when it has done so for five seconds without a failure in between, so one
// that comes and goes is good for two lines in five seconds. A call that failed because its own context ended says
// nothing of the store.
//
// Attributes are key, fence, reason, node, err, and the durations took, held, waited, remaining and down. Keys are logged,
// because "lock lost" without one helps nobody, but for what is beyond 64 bytes; [Key] replaces or omits them. Owner
// tokens, which are all it takes to release a lock, never are. Records carry the context of the call they belong to, those
// of a lease that of the call that acquired it, for handlers that take a trace id from there.
//
// Where it is put makes a difference: below package retry it sees every attempt, and above only what comes of them. Below
// is better: it warns when the store goes away, and not when callers give up on it.
package logging
