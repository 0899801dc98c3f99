// Package once runs a job at most once per tick in the whole fleet, on any [locker.Locker].
//
//	outcome, err := once.Do(ctx, l, "report", tick, func(ctx context.Context) error {
//		return report(ctx, tick)
//	})
//
// All instances call [Do] at each tick of the schedule, and one of them runs the job. A plain lock gets that wrong:
// the instances come one after the other, because their clocks differ and the job takes less time than that. Each of
// them finds the lock free, and "once" is as often as there are instances.
//
// # Which tick
//
// The tick is the time that the schedule names, such as 06:00:00, and all instances have to pass the same one. Time
// zones do not matter. Schedulers have it: in robfig/cron it is the field Prev of the entry. If a scheduler does not
// tell, and calls late by less than half of its interval, it is
//
//	tick := time.Now().Round(time.Minute) // the interval
//
// Truncate in place of Round would name the tick before, if the clock has just been set back by a millisecond. A
// schedule that counts from the start of the process has no ticks that others share.
//
// # How it works
//
// Each tick is a lock of its own, with the name report@2026-11-22T06:00:00Z, except on stores of package record; see
// below. Whoever gets it runs the job. The lock is kept from then on until the window and the skew after the tick are
// over: its TTL is at least as long, so a crash does not free it, and MinHold keeps it when the job is done. After the
// window no instance claims the tick any more. It looks at its clock before it asks the store, and again when it has
// been granted the lock. So when the lock ends, the window is over on every clock, and a process that was stopped or
// late does not run the tick again.
//
// While the job runs, the lock is renewed. Its TTL is what is left of window and skew, 65 s by default, so it is lost
// only if the store cannot be reached for most of that time. It then ends with the context of the job, although nobody
// else runs the tick once the window is over. A long job that should survive that goes on with context.WithoutCancel.
//
// A scheduler that calls the job itself, between a lock and an unlock of its own, gets the lease from [Claim].
//
// A claim takes one round trip. On stores without Order of backend.Capabilities, calls at the same moment
// can refuse each other, so that at first nobody has the tick. Therefore a call that finds the tick claimed
// waits for it for a second. The keys of ticks are not in one hash slot of a Redis Cluster, unless the key has a hash
// tag.
//
// # What is promised
//
// The job is called at most once per tick, whatever happens to processes and networks, if
//
//   - all instances use the same store, prefix, key, window and skew, and pass the same ticks,
//   - the clocks of no two instances are further apart than the skew,
//   - and the store loses no lock before its time. Packages single and redlock and docs/safety.md say what each store
//     needs for that. An operator who releases the lock of a tick allows it to be run again. So does, on
//     backends/filelock, a power cut soon after the job.
//
// It is called at least once if an instance is there within the window, can reach the store before it ends, and does
// not crash in that moment. [Do] and [Claim] ask again each second while they cannot reach the store. If the answer to
// an attempt was lost, and the attempt is not undone within two seconds after that, Do returns [Elsewhere] with an
// error, Claim an error that matches both [ErrElsewhere] and locker.ErrUnavailable, and perhaps nobody runs the tick.
// What is not promised:
//
//   - A tick is not run again after a crash in the middle of the job, nor if the job returns an error. Nor if an
//     instance has claimed it and stood still until the window was over.
//   - Ticks may overlap, because each is a lock of its own. For a job that must not overlap with itself, take a lock in
//     it: locker.TryDo(ctx, l, "report", …) skips the tick while the one before still runs.
//   - A virtual machine that was suspended or restored may have a clock that is wrong by more than the skew, until it
//     has asked for the time.
//
// # When that is not enough
//
// The resource can do better than any lock if it keeps the last tick. This statement makes sure of "at most once" for
// what is in its transaction, without any clock, and also in the order of the ticks:
//
//	UPDATE job SET last = $tick WHERE name = 'report' AND last < $tick   -- no row: stop, it was run
//
// Use Do in front of it, so that one instance does the work. The fencing token of the lock is no replacement: each
// tick is another lock, and tokens of different locks are in no order.
//
// If each tick has to be run at least once, let one process lead with package election. The leader reads the last tick
// that was completed, runs those that are missing, and records each. A job that is interrupted is run again, so it must
// be possible to repeat it.
//
// # Window and skew
//
// The window is how late an instance may be and still run the tick, and so how long an outage of the store may last.
// The skew is twice what the clock of one instance may be wrong by. With time from NTP, clocks are wrong by some
// milliseconds, so the default of 5 s has room. A longer window costs a key in the store for that long, and a lock that
// an operator has released is noticed later, when a third of the TTL is over. Window and skew together are less than 23
// hours, and 3 % less than the TTL that a restart guard allows.
//
// On stores of package record, the ticks of a job have one record, with the last of them, or one for each second of the
// minute: see docs/adr/0084-the-ticks-of-a-job-in-one-record.md. It has room for 36 ticks, and a tick needs its room
// for the window and twice the skew. So a tick each second may have a window of half an hour; see [Window]. A claim of
// one more fails as if the store could not be asked, and is repeated. There, the lease of a job that takes longer than
// window and skew cannot be lost any more. Ticks of a semaphore or a shared lock leave a record for each of their
// locks, for good, and so do those of a Locker whose middleware puts something after the keys.
//
// The context of a call says which tick it is about. Middleware has to pass it on, as any does, or one that is made of
// it. These stores refuse a call that comes without, with locker.ErrInvalid.
//
// Instances with different windows do not agree on when a lock may end. Change the key together with the window, or
// restart all instances between two ticks.
//
// # Other Lockers
//
// With a semaphore.Semaphore of n permits as the Locker, at most n instances run the tick. With rwlock's Exclusive it
// is one, and with Shared all of them. Of the options that locker.Defaults has set, MaxHold and NoRenewal limit how
// long the job has the lock, and change nothing of what is promised. TTL and MinHold are those of this package.
package once
