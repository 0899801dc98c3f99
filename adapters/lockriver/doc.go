// Package lockriver works jobs of [River] under locks, so that two jobs with the same key are not worked at the same
// time in the whole fleet.
//
//	lock := lockriver.New(l, func(job *rivertype.JobRow) string {
//		if job.Kind != "export" {
//			return "" // no lock
//		}
//		return "export"
//	})
//	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
//		Middleware: []rivertype.Middleware{lock}, // and queues, and workers
//	})
//
// l is any [locker.Locker] that the whole fleet shares. With semaphore.New(l, 3), at most three jobs with the same key
// are worked at a time. A key stays locked after a crash until the TTL has ended, which is 10 s unless l has another
// one, as by locker.Wrap(l, locker.Defaults(locker.TTL(d))). To stop, call Drain of l and Stop of River's client at the
// same time, so that jobs which have no lock yet are snoozed and no others are fetched, and close l.
//
// # What is promised
//
// While a job is worked, no other job with its key is, as long as the lock is valid. docs/safety.md has the
// assumptions. (River's unique jobs are something else: a second one is not inserted.)
//
//   - If the key is locked, the job is snoozed until the lock ends unless its holder renews it, or as [Snooze] says.
//     The worker is free for other jobs meanwhile. There is no order among the jobs that are snoozed.
//   - A snooze is not an attempt: River takes back the one that it has counted. So a job is not discarded because it
//     was snoozed, not even with MaxAttempts 1, unless its process crashes at that moment; see below. The field
//     snoozes of its metadata counts them.
//   - If the store of the locks is unavailable, or if l drains, the job is snoozed as well. It was not called, and if
//     it failed instead, an outage of some minutes would discard all jobs that have few attempts. River logs snoozes
//     only for debugging, so these are logged as warnings with slog.Default.
//   - A key that cannot be used, and a Locker that is closed, fail the job. River reports that to its ErrorHandler,
//     counts the attempt, and retries the job.
//   - The lock is released when the job returns or panics, also after its timeout or a cancellation, and before River
//     writes the outcome. A release without an answer does not fail the job: the lock ends with its TTL.
//
// # What happens on a loss
//
// The context of the job ends, and context.Cause returns a *locker.LostError. The job fails with an error that matches
// locker.ErrLost, even if it has returned nil, because another one may have run beside it. River retries it by its
// policy, and counts the attempt. A job that is complete in a transaction of its own, by river.JobCompleteTx, is not
// retried. No lock stops a job that ignores its context, or a process that stands still: pass the fencing token of
// locker.LeaseFrom(ctx) to what the job writes to, or use postgreslock.InTx.
//
// # What happens after kill -9
//
// The lock ends with its TTL, and other jobs with its key are worked. The job that was interrupted is worked again when
// River rescues it, after Config.RescueStuckJobsAfter, which is an hour by default. River looks about twice a minute,
// and later if the process was its leader.
//
// The same happens to jobs that the process was snoozing, because River writes down snoozes up to a quarter of a second
// later. Here, the attempt counts: with MaxAttempts 1, River discards such a job, although it was not worked. So give
// jobs two attempts or more, and do not snooze them for less time than necessary.
//
// River also rescues jobs that still run, because they ignore the end of their context. Without a lock, such a job then
// runs twice at a time. With one, it is snoozed until the first run has returned.
//
// [River]: https://riverqueue.com
package lockriver
