// Package lockasynq processes tasks of [asynq] under locks, so that two tasks with the same key are not processed at
// the same time in the whole fleet.
//
//	mux := asynq.NewServeMux()
//	mux.Use(lockasynq.Middleware(l, func(task *asynq.Task) string {
//		if task.Type() != "export" {
//			return "" // no lock
//		}
//		return "export"
//	}))
//	server := asynq.NewServer(redis, lockasynq.Config(asynq.Config{Concurrency: 10}))
//	err := server.Run(mux)
//
// l is any [locker.Locker] that the whole fleet shares, on the Redis of asynq or on another store. With
// semaphore.New(l, 3), at most three tasks with the same key are processed at a time. A key stays locked after a crash
// until the TTL of l has ended; see locker.TTL. To stop, call Drain of l and Shutdown of the server at the same time,
// so that tasks which have no lock yet are put off and no others are fetched, and close l.
//
// A Scheduler enqueues on each instance where it runs. To let it run on one instance at a time, see the example
// Scheduler.
//
// # What is promised
//
// While a task is processed, no other task with its key is, as long as the lock is valid. docs/safety.md has the
// assumptions. (asynq.Unique is something else: it refuses a second task when it is enqueued.)
//
//   - If the key is locked, the task is put off until the lock ends unless its holder renews it, or as [Delay] says.
//     The same happens if the store of the locks is unavailable, or if l drains. The worker is free for other tasks
//     meanwhile. There is no order among the tasks that are put off, and asynq looks for those whose time has come once
//     per DelayedTaskCheckInterval, by default 5 s. So with a TTL of 10 s, a task may begin 15 s after its key has
//     become free. If tasks are shorter than that, set this field of asynq.Config and Delay to about the length of a
//     task.
//   - asynq decides by its Config what an error means, so [Middleware] needs [Config]: with it, a task that was put off
//     is not counted as a failure, and none of its retries is used up. Without it, asynq counts a failure and waits
//     longer each time, until the last attempt.
//   - asynq archives a task that has no retry left, whatever Config says. So on its last attempt, which is the first
//     one with asynq.MaxRetry(0), a task waits in its worker until it has the lock or its own timeout ends, which is 30
//     minutes unless asynq.Timeout says otherwise.
//   - A key that cannot be used, and a Locker that is closed, fail the task.
//   - The lock is released when the handler returns or panics, and before asynq writes the outcome. A release without
//     an answer does not fail the task: the lock ends with its TTL.
//   - At the timeout of a task, and when it is cancelled, asynq gives up the handler and retries the task, although the
//     handler may still run. It has the lock until it returns, so the retry is put off.
//
// asynq's ErrorHandler is told of each task that is put off. Such an error matches locker.ErrHeld,
// locker.ErrUnavailable or locker.ErrDraining. If the store is unavailable, a warning is also logged with slog.Default,
// because asynq itself says nothing.
//
// # What happens on a loss
//
// The context of the handler ends, and context.Cause returns a *locker.LostError. The task fails with an error that
// matches locker.ErrLost, even if the handler has returned nil, because another one may have run beside it. asynq
// counts a failure and retries the task. No lock stops a handler that ignores its context, or a process that stands
// still: pass the fencing token of locker.LeaseFrom(ctx) to what the handler writes to.
//
// # What happens after kill -9
//
// The lock ends with its TTL, and other tasks with its key are processed. asynq retries the task that was interrupted,
// and counts a failure, when its own lease of 30 s has been over for 30 s and the recoverer of a server looks, which it
// does when the server starts and once a minute. Then the task waits as the RetryDelayFunc of asynq.Config says, 15 to
// 45 s by default for the first retry. If the first process only stood still, or had lost its connection to asynq's
// Redis, its handler may still run then. While it holds the lock, the retry is put off.
//
// [asynq]: https://github.com/hibiken/asynq
package lockasynq
