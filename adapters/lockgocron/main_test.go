package lockgocron_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgocron"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// patient waits for what a Lock has asked a scheduler that was shut down: gocron gives it up after a second.
type patient struct{ m *testing.M }

func (p patient) Run() int {
	code := p.m.Run()
	for range 10 {
		if goleak.Find() == nil {
			break
		}
	}
	return code
}

// fleet is several instances in virtual time, which share a store, and what they have done.
type fleet struct {
	*testing.T
	backend backend.Backend

	mu      sync.Mutex
	ran     map[time.Time]int // how often each tick was run
	refused []error           // of the Locker
}

// withFleet runs f in virtual time.
func withFleet(t *testing.T, f func(w *fleet)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		f(&fleet{T: t, backend: memory.NewBackend(), ran: map[time.Time]int{}})
	})
}

func (w *fleet) client() *locker.Client {
	c := locker.NewClient(w.backend)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// runs counts a run of a tick.
func (w *fleet) runs(tick time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran[tick.UTC()]++
}

// times returns how many ticks were run once, twice and so on.
func (w *fleet) times() map[int]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	times := map[int]int{}
	for _, n := range w.ran {
		times[n]++
	}
	return times
}

// recording is a Locker of a fleet.
type recording struct {
	*fleet
	gocron.Locker
}

func (r *recording) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := r.Locker.Lock(ctx, job)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, err)
	}
	return lock, err
}

// clock is that of an instance, which is ahead of others, and whose timers are late.
type clock struct {
	clockwork.Clock
	ahead, late time.Duration
}

func newClock(ahead, late time.Duration) *clock { return &clock{clockwork.NewRealClock(), ahead, late} }

func (c *clock) Now() time.Time { return c.Clock.Now().Add(c.ahead) }

func (c *clock) AfterFunc(d time.Duration, f func()) clockwork.Timer {
	return c.Clock.AfterFunc(d+c.late, f)
}

// scheduler returns a scheduler with one job.
func (w *fleet) scheduler(
	c *clock, opt gocron.SchedulerOption, schedule gocron.JobDefinition, job func(), opts ...gocron.JobOption,
) gocron.Scheduler {
	w.Helper()
	s, err := gocron.NewScheduler(gocron.WithClock(c), gocron.WithLocation(time.UTC), opt)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := s.NewJob(schedule, gocron.NewTask(job), append(opts, gocron.WithName("report"))...); err != nil {
		w.Fatal(err)
	}
	return s
}

// claiming starts a scheduler with a job that is run once per tick.
func (w *fleet) claiming(
	c *clock, schedule gocron.JobDefinition, job func(), opts ...gocron.JobOption,
) gocron.Scheduler {
	w.Helper()
	k := lockgocron.New(w.client())
	lockgocron.SetClock(k, c.Now)
	s := w.scheduler(c, gocron.WithDistributedLocker(&recording{w, k}), schedule, job, opts...)
	k.Attach(s)
	s.Start()
	return s
}

// stop stops schedulers whose jobs have ended. While it waits for jobs, gocron keeps a processor busy, and virtual time
// stands still.
func (w *fleet) stop(all ...gocron.Scheduler) {
	w.Helper()
	for _, s := range all {
		if err := s.Shutdown(); err != nil {
			w.Error(err)
		}
	}
}
