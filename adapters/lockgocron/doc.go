// Package lockgocron lets several instances of a gocron scheduler share their jobs: a [Locker] runs each tick of a job
// at most once, and an elector, [ByElection], runs all jobs on one instance.
//
//	ticks := lockgocron.New(l)
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(ticks))
//	if err != nil {
//		return err
//	}
//	ticks.Attach(s)
//	_, err = s.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(report), gocron.WithName("report"))
//	if err != nil {
//		return err
//	}
//	s.Start()
//
// l is a Locker of any store that all instances share.
//
// # At most once per tick
//
// gocron locks the name of the job while the job runs. Under one lock for all ticks, instances come one after the
// other, because their clocks differ, and a quick job runs as often as there are instances. Here each tick is a lock
// of its own, which outlasts the job: package once has the promises, and their assumptions about clocks.
//
// gocron gives a Locker the name of the job, and not the tick. The Locker asks the scheduler when the job is due. So
// an instance whose timer is late names the same tick as the others. Therefore
//
//   - jobs have names that differ: gocron.WithName;
//   - the schedule names the same times on all instances. That of CronJob and OneTimeJob does, and of DailyJob,
//     WeeklyJob and MonthlyJob with an interval of one, if all schedulers have the same gocron.WithLocation. With a
//     longer interval, give the job the same gocron.WithStartAt on all instances. DurationJob has a rule of its own,
//     see below. DurationRandomJob has no ticks, and neither has the first run of any other job with
//     gocron.WithStartImmediately;
//   - a run that somebody asks for with RunNow is of no tick. Give its job gocron.WithDisabledDistributedJobLocker.
//
// # Jobs that count from the start of the process
//
// A DurationJob is due at other times on each instance: those of a job of five minutes may be 12:01:07, 12:06:07 on
// one, and 12:03:30, 12:08:30 on another. Here its ticks are the multiples of the interval, such as 12:00 and 12:05,
// and the first instance that is due after one runs it: once per interval in the whole fleet. So two runs are an
// interval apart while the same instance does it, and from nearly nothing to two intervals where another one goes on.
// The lock of a tick is kept for the interval and a minute, whatever once.Window says. An instance that has just
// started is first due an interval later, so an instance that is started again sooner than that never runs the job.
//
// A job that is to run at the multiples themselves has
// gocron.WithStartAt(gocron.WithStartDateTimePast(time.Now().Truncate(interval))), which is also what an interval of
// more than 22 hours needs, and a restart guard that does not allow locks of that length.
//
// # Errors
//
// If the Locker returns an error, gocron skips the run, and tells nobody but the listener gocron.AfterLockError.
// Therefore the error is logged, as a warning of slog.Default. It matches once.ErrElsewhere if another instance has the
// tick, which is usual and not logged, once.ErrTooLate if the instance is later than the window, and [ErrNoTick] if the
// run is of no tick.
//
// While the store is down, the Locker asks again each second, until the window of the tick is over: a minute by
// default, or the interval of a DurationJob and a minute. So no tick is missed in an outage that is shorter. It logs
// when it begins to wait. If the store is not back in time, the error matches both once.ErrTooLate and
// locker.ErrUnavailable. gocron plans the next run of the job only when the Locker has answered, so an instance misses
// the ticks that fall due meanwhile.
//
// # Loss and crashes
//
// The lock is renewed while the job runs. If it is lost nevertheless, the job is not told: gocron gives each run the
// same context. A warning is logged when the run has ended. This does little harm, because nobody runs the tick when
// its window is over. The tick of an instance that crashes is not run again. The next tick has another lock, so a job
// may overlap with itself on another instance; gocron.WithSingletonMode prevents this within one. Such a job takes a
// lock in it, or runs under an election.
//
// # By election
//
// With gocron.WithDistributedElector, the instance that leads runs all jobs. gocron then does not use the Locker, and a
// leader that resigns just after a tick may be followed by one whose clock has not reached it: both run it. A run that
// has begun is not told that its instance leads no more. An instance that does not lead keeps, in gocron 2.21, the
// time of each tick that it skips, for as long as that lasts. A scheduler that lives for one term is better in that:
//
//	OnElected: func(ctx context.Context, _ election.Term) error {
//		s, err := gocron.NewScheduler(gocron.WithGlobalJobOptions(gocron.WithContext(ctx)))
//		// …
//		s.Start()
//		<-ctx.Done()
//		return s.Shutdown() // which waits for the jobs
//	}
package lockgocron
