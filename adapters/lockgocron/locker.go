package lockgocron

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	// longest is up to which interval a DurationJob that counts from the start of the process has shared ticks: the
	// lock of a tick lasts for the whole interval and the window, and no lock may last for longer than locker.MaxTTL.
	longest = 22 * time.Hour
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
//
// While the store is down, Lock asks again until the window of the tick is over, as once.Claim does. It logs that once.
//
// gocron tells nobody of an error of Lock or Unlock. So both are logged as warnings with slog.Default, unless another
// instance has claimed the tick, or the context has ended.
func (k *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lease, err := k.claim(ctx, job)
	if err != nil {
		if !errors.Is(err, once.ErrElsewhere) && ctx.Err() == nil {
			slog.Default().WarnContext(ctx, "gocron skips a run of a job", "job", job, "error", err)
		}
		return nil, err
	}
	return &claimed{lease, job}, nil
}

// claimed is the lock of a run.
type claimed struct {
	locker.Lease
	job string
}

// Unlock overrides that of the lease.
func (c *claimed) Unlock(ctx context.Context) error {
	err := c.Lease.Unlock(ctx)
	if err != nil {
		slog.Default().WarnContext(ctx, "a job of gocron has lost its lock", "job", c.job, "error", err)
	}
	return err
}

func (k *Locker) claim(ctx context.Context, job string) (locker.Lease, error) {
	type answer struct {
		tick time.Time
		opts []once.Option
		err  error
	}
	asked := make(chan answer, 1)
	go func() { // a scheduler that stops its jobs answers nobody, and waits for them
		tick, opts, err := k.tick(job)
		asked <- answer{tick, opts, err}
	}()
	select {
	case a := <-asked:
		if a.err != nil {
			return nil, &locker.Error{Op: "once", Key: job, Err: a.err}
		}
		log := once.Unavailable(func(err error) {
			slog.Default().WarnContext(ctx, "a run of a job of gocron waits for the store of locks", "job", job, "error", err)
		})
		return once.Claim(ctx, k.locker, job, a.tick, append([]once.Option{log}, a.opts...)...)
	case <-ctx.Done():
		return nil, &locker.Error{Op: "once", Key: job, Err: context.Cause(ctx)}
	}
}

// tick returns the tick of the run that begins, and the options for its claim.
func (k *Locker) tick(name string) (time.Time, []once.Option, error) {
	job, err := k.find(name)
	if err != nil {
		return time.Time{}, nil, err
	}
	dates, err := job.NextRuns(kept)
	if err != nil {
		return time.Time{}, nil, err
	}
	var due time.Time // the latest one that has come
	now := k.now().Add(early)
	for _, t := range dates {
		if t.After(due) && !t.After(now) {
			due = t
		}
	}
	if due.IsZero() {
		return time.Time{}, nil, fmt.Errorf("%w: it is due later", ErrNoTick)
	}
	every, regular := job.Schedule().(gocron.DurationJobSchedule)
	begin := due
	if regular {
		begin = due.Truncate(every.Duration)
	}
	switch {
	case !begin.Equal(due) && every.Duration <= longest: // of this instance alone
		window := once.Window(every.Duration + once.DefaultWindow)
		return begin.Truncate(time.Millisecond), append(k.opts[:len(k.opts):len(k.opts)], window), nil
	case !begin.Equal(due) && due.Nanosecond() != 0:
		return time.Time{}, nil, fmt.Errorf("%w: with an interval of more than %v, it is due at times that no other "+
			"instance shares: use gocron.CronJob, or WithStartAt", ErrNoTick, longest)
	case due.Nanosecond()%int(time.Millisecond) != 0:
		return time.Time{}, nil, fmt.Errorf("%w: it is due at %v, which no other instance shares", ErrNoTick, due)
	}
	return due, k.opts, nil
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
		return nil, fmt.Errorf("%w: it is due at random: use gocron.DurationJob", ErrNoTick)
	}
	return found, nil
}
