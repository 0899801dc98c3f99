package lockgocron_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgocron"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/lockertest"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/once"
)

// A gocron.JobDefinition is for one scheduler.
func minutely() gocron.JobDefinition { return gocron.CronJob("* * * * *", false) }

func hourly() gocron.JobDefinition { return gocron.CronJob("0 * * * *", false) }

// plain is the Locker that others write for gocron: one lock for all ticks of a job.
type plain struct{ locker *locker.Client }

func (p plain) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	return p.locker.TryLock(ctx, job)
}

// Three replicas, whose clocks are 200 ms apart, run a thousand ticks. Under a plain lock, each of them runs each tick.
func TestEachTickRunsOnce(t *testing.T) {
	const ticks = 1000
	for name, want := range map[string]int{"a lock per tick": 1, "a plain lock": 3} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(w *fleet) {
				time.Sleep(30 * time.Second) // no clock shows a tick
				var all []gocron.Scheduler
				for n := range 3 {
					c := newClock(time.Duration(n-1)*200*time.Millisecond, 0)
					job := func() {
						w.runs(c.Now().Round(time.Minute))
						time.Sleep(50 * time.Millisecond)
					}
					if want == 1 {
						all = append(all, w.claiming(c, minutely(), job))
						continue
					}
					s := w.scheduler(c, gocron.WithDistributedLocker(plain{w.client()}), minutely(), job)
					s.Start()
					all = append(all, s)
				}
				time.Sleep(ticks * time.Minute)
				w.stop(all...)
				if got := w.times(); !maps.Equal(got, map[int]int{want: ticks}) {
					w.Errorf("of %d ticks, so many ran so often: %v", ticks, got)
				}
				for _, err := range w.refused {
					if !errors.Is(err, once.ErrElsewhere) {
						w.Error(err)
					}
				}
			})
		})
	}
}

// An instance whose timer is late, or was started before the clock was set back, names the same tick as the others.
func TestTimersAreWrong(t *testing.T) {
	for name, late := range map[string]time.Duration{"late": 40 * time.Second, "early": -300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(w *fleet) {
				job := func() { w.runs(time.Now().Round(time.Hour)) }
				wrong := w.claiming(newClock(0, late), hourly(), job)
				time.Sleep(3*time.Hour + time.Minute)
				if got := w.times(); !maps.Equal(got, map[int]int{1: 3}) {
					w.Errorf("alone: %v, %v", got, w.refused)
				}
				right := w.claiming(newClock(0, 0), hourly(), job)
				time.Sleep(3 * time.Hour)
				w.stop(wrong, right)
				if got := w.times(); !maps.Equal(got, map[int]int{1: 6}) {
					w.Errorf("together: %v, %v", got, w.refused)
				}
			})
		})
	}
}

// Runs that are of no tick are skipped, and so are jobs whose ticks the instances do not share.
func TestWhichRunsHaveATick(t *testing.T) {
	const interval = 5 * time.Minute
	startAt := func(o gocron.StartAtOption) []gocron.JobOption { return []gocron.JobOption{gocron.WithStartAt(o)} }
	nothing := func() {}
	for name, tt := range map[string]struct {
		schedule gocron.JobDefinition
		opts     []gocron.JobOption
		late     time.Duration
		wait     time.Duration // longer than usual
		act      func(s gocron.Scheduler) error
		want     error // nil: the job runs
		text     string
	}{
		"aligned": {
			schedule: gocron.DurationJob(interval),
			opts:     startAt(gocron.WithStartDateTimePast(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))),
		},
		"from the start": {schedule: gocron.DurationJob(interval)},
		"from the start, with an interval that is too long for a lock": {
			schedule: gocron.DurationJob(interval + 24*time.Hour), wait: 24 * time.Hour, want: lockgocron.ErrNoTick,
			text: "use gocron.CronJob",
		},
		"aligned, with such an interval": {
			schedule: gocron.DurationJob(24 * time.Hour), wait: 24 * time.Hour,
			opts: startAt(gocron.WithStartDateTimePast(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))),
		},
		"at random": {
			schedule: gocron.DurationRandomJob(interval, interval+1), want: lockgocron.ErrNoTick, text: "at random",
		},
		"at once": {
			schedule: hourly(), opts: startAt(gocron.WithStartImmediately()), want: lockgocron.ErrNoTick, text: "shares",
		},
		"by hand": {
			schedule: hourly(), act: func(s gocron.Scheduler) error { return s.Jobs()[0].RunNow() },
			want: lockgocron.ErrNoTick, text: `locker: once "report": the run is of no tick: it is due later`,
		},
		"of two jobs": {
			schedule: gocron.CronJob("*/5 * * * *", false), want: locker.ErrInvalid, text: "two jobs have this name",
			act: func(s gocron.Scheduler) error {
				_, err := s.NewJob(hourly(), gocron.NewTask(nothing), gocron.WithName("report"))
				return err
			},
		},
		"too late": {schedule: gocron.CronJob("*/5 * * * *", false), late: 90 * time.Second, want: once.ErrTooLate},
	} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(w *fleet) {
				time.Sleep(time.Second + time.Microsecond) // a program starts at any time
				s := w.claiming(newClock(0, tt.late), tt.schedule, func() { w.runs(time.Now()) }, tt.opts...)
				time.Sleep(time.Second)
				if tt.act != nil {
					if err := tt.act(s); err != nil {
						w.Error(err)
					}
				}
				time.Sleep(tt.wait + interval + 2*time.Minute)
				w.stop(s)
				ran := w.times()[1]
				if tt.want == nil {
					if ran != 1 || w.refused != nil {
						w.Errorf("%d runs, %v", ran, w.refused)
					}
					return
				}
				if ran != 0 || len(w.refused) != 1 || !errors.Is(w.refused[0], tt.want) ||
					!strings.Contains(w.refused[0].Error(), tt.text) {
					w.Errorf("%d runs, %v; want %v", ran, w.refused, tt.want)
				}
			})
		})
	}
}

// Instances that were started at different times, and whose clocks differ, are due at different times. Each interval of
// a DurationJob has one run in all of them, also when the one that was always the first stops.
func TestDurationJobRunsOncePerInterval(t *testing.T) {
	withFleet(t, func(w *fleet) {
		const interval = 5 * time.Minute
		var all []gocron.Scheduler
		for n := range 3 {
			time.Sleep(70*time.Second + time.Microsecond)
			c := newClock(time.Duration(n-1)*2*time.Second, 0)
			all = append(all, w.claiming(c, gocron.DurationJob(interval), func() {
				w.runs(c.Now().Truncate(interval))
				time.Sleep(50 * time.Millisecond)
			}))
		}
		time.Sleep(101*interval + 10*time.Second)
		w.stop(all[0]) // which is due first after each multiple of the interval
		time.Sleep(100 * interval)
		w.stop(all[1:]...)
		if got := w.times()[1]; got < 200 || got > 201 || len(w.times()) != 1 {
			w.Errorf("of 201 intervals, so many ran so often: %v", w.times())
		}
		for _, err := range w.refused {
			if !errors.Is(err, once.ErrElsewhere) {
				w.Error(err)
			}
		}
	})
}

// The store is down from a second before a tick until four seconds after it. The tick is run once nevertheless, by a
// job of each kind, and each instance logs that it waits.
func TestOutageOverATick(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	at := gocron.NewAtTimes(gocron.NewAtTime(1, 0, 0))
	for name, schedule := range map[string]func(next time.Time) gocron.JobDefinition{
		"DurationJob": func(time.Time) gocron.JobDefinition { return gocron.DurationJob(5 * time.Minute) },
		"CronJob":     func(time.Time) gocron.JobDefinition { return hourly() },
		"DailyJob":    func(time.Time) gocron.JobDefinition { return gocron.DailyJob(1, at) },
		"WeeklyJob": func(next time.Time) gocron.JobDefinition {
			return gocron.WeeklyJob(1, gocron.NewWeekdays(next.Weekday()), at)
		},
		"MonthlyJob": func(next time.Time) gocron.JobDefinition {
			return gocron.MonthlyJob(1, gocron.NewDaysOfTheMonth(next.Day()), at)
		},
		"OneTimeJob": func(next time.Time) gocron.JobDefinition {
			return gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(next))
		},
	} {
		t.Run(name, func(t *testing.T) {
			log.Reset()
			withFleet(t, func(w *fleet) {
				store := lockertest.NewStore()
				w.backend = store
				day := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
				next := day.Add(time.Hour)
				time.Sleep(time.Until(next.Add(-5 * time.Minute)))
				var all []gocron.Scheduler
				for n := range 3 {
					c := newClock(time.Duration(n)*100*time.Millisecond, 0)
					all = append(all, w.claiming(c, schedule(next), func() { w.runs(next) }))
				}
				time.Sleep(time.Until(next.Add(-time.Second)))
				store.Down()
				time.Sleep(5 * time.Second)
				store.Up()
				time.Sleep(time.Minute)
				w.stop(all...)
				if got := w.times(); !maps.Equal(got, map[int]int{1: 1}) {
					w.Errorf("%v, %v", got, w.refused)
				}
				if got := log.String(); strings.Count(got, "waits for the store of locks") != 3 || strings.Count(got, "\n") != 3 {
					w.Error(got)
				}
			})
		})
	}
}

// gocron tells nobody of these errors.
func TestSkippedRunsAndLossesAreLogged(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	withFleet(t, func(w *fleet) {
		store := lockertest.NewStore()
		w.backend = store
		one := w.claiming(newClock(0, 0), minutely(), func() {
			tick := time.Now()
			if err := store.Lose(w.Context(), "report@"+tick.UTC().Format(time.RFC3339)); err != nil {
				w.Error(err)
			}
			time.Sleep(40 * time.Second) // the loss is noticed meanwhile
		})
		other := w.claiming(newClock(-time.Second, 0), minutely(), func() {})
		time.Sleep(time.Minute + 50*time.Second)
		w.stop(one, other)
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "has lost its lock") {
			w.Errorf("after a loss: %s", got)
		}
		log.Reset()
		third := w.claiming(newClock(0, 0), gocron.DurationRandomJob(time.Minute, time.Minute+1), func() {})
		time.Sleep(time.Minute + 30*time.Second)
		w.stop(third)
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "the run is of no tick") {
			w.Errorf("without a tick: %s", got)
		}
	})
}

func TestNotAttached(t *testing.T) {
	if _, err := lockgocron.New(nil).Lock(t.Context(), "report"); !errors.Is(err, locker.ErrInvalid) {
		t.Error(err)
	}
}

// A job is not told that its lock is lost. The next tick is another lock.
func TestLossInTheJob(t *testing.T) {
	withFleet(t, func(w *fleet) {
		store := lockertest.NewStore()
		w.backend = store
		s := w.claiming(newClock(0, 0), minutely(), func() {
			tick := time.Now()
			w.runs(tick)
			if err := store.Lose(w.Context(), "report@"+tick.UTC().Format(time.RFC3339)); err != nil {
				w.Error(err)
			}
			time.Sleep(40 * time.Second) // the loss is noticed meanwhile
		})
		time.Sleep(3*time.Minute + 50*time.Second)
		w.stop(s)
		if got := w.times(); !maps.Equal(got, map[int]int{1: 3}) || w.refused != nil {
			w.Errorf("%v, %v", got, w.refused)
		}
	})
}

// A scheduler that stops its jobs answers nobody until they have ended. Lock does not wait for it. The lock of a job
// that ends then is released, although the context of the job has ended.
func TestSchedulerStopsItsJobs(t *testing.T) {
	client := memory.New()
	defer func() { _ = client.Close() }()
	k := lockgocron.New(client)
	claimed := make(chan string, 1)
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(naming{k, claimed}))
	if err != nil {
		t.Fatal(err)
	}
	k.Attach(s)
	ending, end := make(chan struct{}), make(chan struct{})
	job := func(ctx context.Context) {
		<-ctx.Done()
		close(ending)
		<-end
	}
	_, err = s.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(job), gocron.WithName("report"),
		gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	key := <-claimed
	stopped := make(chan error)
	go func() { stopped <- s.StopJobs() }()
	<-ending
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Lock(ended, "report"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(end)
	if err := errors.Join(<-stopped, s.Shutdown()); err != nil {
		t.Error(err)
	}
	if seen, err := client.Inspect(t.Context(), key); err != nil || seen.State != inspect.Kept {
		t.Errorf("%s is %s, %v; want %s", key, seen.State, err, inspect.Kept)
	}
}

// naming is a Locker that tells the first tick that was claimed.
type naming struct {
	gocron.Locker
	claimed chan string
}

func (n naming) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := n.Locker.Lock(ctx, job)
	if err == nil {
		select {
		case n.claimed <- lock.(locker.Lease).Key():
		default:
		}
	}
	return lock, err
}
