package lockgocron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/golocker/locker"
	"github.com/golocker/locker/once"
)

const (
	// early is by how much the clock may be set back between the start of a timer and its end. It is half of the
	// shortest interval of a crontab.
	early = 500 * time.Millisecond

	// kept is among how many times that a job is due the present one is looked for. gocron may still have some that
	// are over.
	kept = 4
)

// ErrNoTick means that the scheduler has no time at which the job is due now, or none that other instances share.
var ErrNoTick = errors.New("the run is of no tick")

// Locker claims the ticks of jobs, for gocron.WithDistributedLocker or WithDistributedJobLocker. It belongs to one
// scheduler.
type Locker struct {
	locker    locker.Locker
	opts      []once.Option
	scheduler gocron.Scheduler
	now       func() time.Time // the clock of the scheduler
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a Locker whose ticks are locks of l. All instances need the same opts.
func New(l locker.Locker, opts ...once.Option) *Locker {
	return &Locker{locker: l, opts: opts, now: time.Now}
}

// Attach says which scheduler has the Locker, which asks it for the ticks of its jobs. Call it before Start of the
// scheduler.
func (k *Locker) Attach(s gocron.Scheduler) { k.scheduler = s }

// Lock claims the present tick of a job. gocron calls it before a run, and Unlock of the result after it. Unlock heeds
// no end of its context, because gocron ends it when the scheduler stops.
func (k *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	type answer struct {
		tick time.Time
		err  error
	}
	asked := make(chan answer, 1)
	go func() { // a scheduler that stops its jobs answers nobody, and waits for them
		tick, err := k.tick(job)
		asked <- answer{tick, err}
	}()
	select {
	case a := <-asked:
		if a.err != nil {
			return nil, &locker.Error{Op: "once", Key: job, Err: a.err}
		}
		return once.Claim(ctx, k.locker, job, a.tick, k.opts...)
	case <-ctx.Done():
		return nil, &locker.Error{Op: "once", Key: job, Err: context.Cause(ctx)}
	}
}

// tick returns the time that the schedule of a job names for the run that begins: the latest one that has come.
func (k *Locker) tick(name string) (tick time.Time, err error) {
	job, err := k.find(name)
	if err != nil {
		return time.Time{}, err
	}
	due, err := job.NextRuns(kept)
	if err != nil {
		return time.Time{}, err
	}
	now := k.now().Add(early)
	for _, t := range due {
		if t.After(tick) && !t.After(now) {
			tick = t
		}
	}
	if tick.IsZero() {
		return time.Time{}, fmt.Errorf("%w: it is due later", ErrNoTick)
	}
	return tick, nil
}

// find returns the job of a name.
func (k *Locker) find(name string) (found gocron.Job, err error) {
	if k.scheduler == nil {
		return nil, fmt.Errorf("%w: Attach was not called", locker.ErrInvalid)
	}
	for _, job := range k.scheduler.Jobs() {
		if job.Name() != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%w: two jobs have this name: use gocron.WithName", locker.ErrInvalid)
		}
		found = job
	}
	if found == nil {
		return nil, gocron.ErrJobNotFound
	}
	if _, random := found.Schedule().(gocron.DurationRandomJobSchedule); random {
		return nil, fmt.Errorf("%w: it is due at random", ErrNoTick)
	}
	return found, nil
}
