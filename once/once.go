package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/tick"
)

const (
	// DefaultWindow is how late a tick may be claimed without a [Window] option.
	DefaultWindow = time.Minute

	// DefaultSkew is how far apart the clocks of two instances may be without a [Skew] option.
	DefaultSkew = 5 * time.Second

	// settling is how long a call looks at a tick that it has found claimed. On stores without an order, calls at the same
	// moment can refuse each other, so that nobody has the tick, and what holds a lock may be an attempt that is being
	// undone. The queue of the store settles that within some round trips.
	settling = time.Second
)

// ErrTooLate means that the tick was longer ago than the window, so that it must not be claimed any more: the lock
// that would show that another instance has run it may have ended.
var ErrTooLate = errors.New("too late for the tick")

// ErrElsewhere means that another call has claimed the tick. Such an error also matches locker.ErrHeld.
var ErrElsewhere = errors.New("another call has claimed the tick")

// Outcome says what became of a call of [Do].
type Outcome string

const (
	// Ran means that f was called. The error is that of f, joined with one that matches locker.ErrLost if the lock was
	// lost while f ran. It is nil if there is none.
	Ran Outcome = "ran"

	// Elsewhere means that another call has claimed the tick: f runs there, or has run, or was interrupted by a crash.
	// The error is nil, unless the store could not be asked at first. Then it matches [ErrElsewhere] and
	// locker.ErrUnavailable: what has claimed the tick may be an attempt of this call, whose answer was lost and which is
	// not undone yet, so that nobody runs the tick.
	Elsewhere Outcome = "elsewhere"

	// TooLate means that the window was over before f could be called here. Whether the tick was run elsewhere is not
	// known. The error matches [ErrTooLate].
	TooLate Outcome = "too late"

	// Failed means that the tick could not be claimed, and that f was not called. The error is that of the Locker, for
	// example because ctx has ended while the store could not be reached.
	Failed Outcome = "failed"
)

// Option changes one call of [Do] or [Claim]. All instances need the same options for a key.
type Option func(*options)

type options struct {
	window, skew time.Duration
	now          func() time.Time // the wall clock
	unavailable  func(err error)  // see Unavailable
}

// Window sets how late a tick may be claimed. It is how long an instance may take from the tick to the grant of the
// lock: because its scheduler is late, the process stands still, or the store is down and the call is repeated. It does
// not limit how long f runs. The default is [DefaultWindow]. With a value that is not positive, Do fails with
// locker.ErrInvalid.
//
// On stores of package record, ticks at the same second of the minute, such as those at full minutes, have to be
// further apart than a 36th of the window and twice the skew: 20 min and 1 s with a window of 12 hours.
func Window(d time.Duration) Option {
	return func(o *options) { o.window = d }
}

// Skew sets how far apart the clocks of any two instances may be. If they are further apart, a tick may be run twice.
// The default is [DefaultSkew]. With a negative value, Do fails with locker.ErrInvalid.
func Skew(d time.Duration) Option {
	return func(o *options) { o.skew = d }
}

// Unavailable sets a function that is called once if the store cannot be asked, before the call begins to ask again, so
// that a program can tell why nothing happens. It must not block.
func Unavailable(f func(err error)) Option {
	return func(o *options) { o.unavailable = f }
}

// Do calls f, unless another call for the same key and tick has been granted the right to do so, in this process or in
// another one that uses the same store. tick is the time that the schedule names, and not the time of the call. It must
// be a whole millisecond, because a time of the clock would be another tick on each instance, and not further ahead
// than the skew or a second. Otherwise the error matches locker.ErrInvalid.
//
// The context of f ends with ctx and when the lock of the tick is lost, as that of locker.Do does. If f panics, the
// tick stays claimed.
//
// A call that finds the tick claimed looks again for up to a second before it returns. If the store cannot be asked,
// Do asks again each second, until the window is over. It returns sooner with [Failed] if ctx ends.
func Do(
	ctx context.Context, l locker.Locker, key string, tick time.Time, f func(ctx context.Context) error, opts ...Option,
) (Outcome, error) {
	ran := false
	err := locker.Do(ctx, claims{l, newClaim(tick, opts)}, key, func(ctx context.Context) error {
		ran = true
		return f(ctx)
	})
	switch {
	case ran:
		return Ran, err
	case errors.Is(err, ErrTooLate):
		return TooLate, err
	case errors.Is(err, ErrElsewhere):
		if !errors.Is(err, locker.ErrUnavailable) {
			err = nil
		}
		return Elsewhere, err
	default:
		return Failed, err
	}
}

// pause waits before the store is asked again. It returns false if ctx ends.
func pause(ctx context.Context) bool {
	again := time.NewTimer(settling)
	defer again.Stop()
	select {
	case <-again.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reason returns what err says, without the key of a lock.
func reason(err error) error {
	if of := (*locker.Error)(nil); errors.As(err, &of) {
		return of.Err
	}
	return err
}

// claims is the Locker that Do gives to locker.Do.
type claims struct {
	locker.Locker
	claim *claim
}

// Lock claims the tick. It overrides that of the Locker.
func (c claims) Lock(ctx context.Context, key string, _ ...locker.Option) (locker.Lease, error) {
	return c.claim.repeat(ctx, c.Locker, key)
}

// Claim is the part of [Do] before f, for schedulers that call the job themselves. Whoever gets the lease runs the
// job, and calls Unlock when the job has ended. The tick stays claimed. If the job has not begun when Unlock is called,
// the tick is not run.
//
// Claim asks again each second while the store cannot be asked, as Do does: until the window is over, or ctx ends. So
// it may take as long as the window.
//
// The error matches [ErrElsewhere] where Do returns [Elsewhere], and [ErrTooLate] where it returns [TooLate]. If the
// store could not be asked at first, it also matches locker.ErrUnavailable. Otherwise it is that of the Locker.
func Claim(
	ctx context.Context, l locker.Locker, key string, tick time.Time, opts ...Option,
) (locker.Lease, error) {
	return newClaim(tick, opts).repeat(ctx, l, key)
}

// repeat claims the tick. It asks again while the store cannot be asked.
func (c *claim) repeat(ctx context.Context, l locker.Locker, key string) (locker.Lease, error) {
	var down error
	for {
		lease, err := c.acquire(ctx, l, key)
		if errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrClosed) {
			if down == nil && c.unavailable != nil {
				c.unavailable(err)
			}
			down = err
			if pause(ctx) {
				continue
			}
			err = context.Cause(ctx)
		}
		if down != nil && (errors.Is(err, ErrTooLate) || errors.Is(err, ErrElsewhere) || err != nil && ctx.Err() != nil) {
			err = &locker.Error{Op: "once", Key: key, Err: fmt.Errorf("%w: %w", reason(err), reason(down))}
		}
		return lease, err
	}
}

// acquire makes an attempt to claim the tick.
func (c *claim) acquire(ctx context.Context, l locker.Locker, key string) (locker.Lease, error) {
	err := c.validate(key)
	if err == nil {
		err = c.late()
	}
	if err != nil {
		return nil, &locker.Error{Op: "once", Key: key, Err: err}
	}
	lease, err := c.lock(ctx, l, key)
	switch {
	case errors.Is(err, ErrElsewhere):
		return nil, &locker.Error{Op: "once", Key: key, Err: err}
	case err != nil:
		return nil, named(key, err)
	}
	// If the process or the store stood still, the lock of another instance may have ended before this one was granted.
	if late := c.late(); late != nil {
		_ = lease.Unlock(ctx)
		return nil, &locker.Error{Op: "once", Key: key, Err: late}
	}
	return &claimed{lease, key}, nil
}

// named returns err, which is about the lock of a tick, with the key of the caller.
func named(key string, err error) error {
	if of := (*locker.Error)(nil); errors.As(err, &of) {
		return &locker.Error{Op: of.Op, Key: key, Err: of.Err}
	}
	return err
}

// claim is one call of Claim or Do.
type claim struct {
	options
	tick   time.Time
	looked time.Time     // at the clocks, by the monotonic clock
	age    time.Duration // of the tick at that time
}

func newClaim(tick time.Time, opts []Option) *claim {
	c := &claim{
		options: options{window: DefaultWindow, skew: DefaultSkew, now: time.Now}, tick: tick, looked: time.Now(),
	}
	for _, opt := range opts {
		opt(&c.options)
	}
	c.age = c.wall()
	return c
}

// wall returns the age of the tick by the wall clock. Without Round, the monotonic clock would count if the tick has a
// reading of it, and that stands still while a machine is suspended.
func (c *claim) wall() time.Duration { return c.now().Round(0).Sub(c.tick.Round(0)) }

func (c *claim) validate(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: the key is empty", locker.ErrInvalid)
	case c.window <= 0:
		return fmt.Errorf("%w: Window %v is not positive", locker.ErrInvalid, c.window)
	case c.skew < 0:
		return fmt.Errorf("%w: Skew %v is negative", locker.ErrInvalid, c.skew)
	case -c.age > max(c.skew, time.Second): // a timer may be a little early, too
		return fmt.Errorf("%w: the tick %v is %v ahead", locker.ErrInvalid, c.tick, -c.age.Round(time.Millisecond))
	case c.tick.Nanosecond()%int(time.Millisecond) != 0:
		return fmt.Errorf("%w: the tick %v is not a whole millisecond; it has to be the time that the schedule names, "+
			"and not that of the call", locker.ErrInvalid, c.tick)
	}
	return nil
}

// late returns an error if the window is over. It reads both clocks: the wall clock may have been set back since the
// call began, and the monotonic clock stands still while the machine is suspended.
func (c *claim) late() error {
	c.age, c.looked = max(c.wall(), c.age+time.Since(c.looked)), time.Now()
	if c.age <= c.window {
		return nil
	}
	return fmt.Errorf("%w: %v was %v ago, and the window is %v", ErrTooLate, c.tick, c.age.Round(time.Millisecond),
		c.window)
}

// hold returns how long the lock of the tick lasts at least, whatever becomes of this process. When it ends, the window
// is over for every instance. The rest is for the clock of a store that is too fast, twice what a lease allows for.
func (c *claim) hold() time.Duration {
	d := c.window + c.skew - c.age
	return d + d/50 + 10*time.Millisecond
}

// lock acquires the lock of the tick of the job key. A store may keep the ticks of a job in one place: it is told when
// nobody claims the tick any more.
func (c *claim) lock(ctx context.Context, l locker.Locker, job string) (locker.Lease, error) {
	until := c.tick.Round(0).Add(c.window + c.skew)
	ctx = tick.With(ctx, &tick.Tick{Job: job, At: c.tick, Until: until, Drop: until.Add(c.skew), Now: c.now})
	key := tick.Name(job, c.tick)
	opts := []locker.Option{locker.TTL(c.hold()), locker.MinHold(c.hold())}
	lease, held := l.TryLock(ctx, key, opts...)
	if !errors.Is(held, locker.ErrHeld) || ctx.Err() != nil {
		return lease, held
	}
	wait, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	lease, err := l.Lock(wait, key, opts...)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		return nil, elsewhere(held)
	}
	return lease, err
}

// elsewhere returns an error that says what the store knows about the holder.
func elsewhere(held error) error {
	var by *locker.HeldError
	if errors.As(held, &by) {
		held = by
	}
	return fmt.Errorf("%w: %w", ErrElsewhere, held)
}

// claimed is the lease of a tick.
type claimed struct {
	locker.Lease
	key string // of the caller
}

// Extend extends the lock of the tick. It overrides that of the Lease, as Verify and Bind do, so that errors name the
// key of the caller.
func (c *claimed) Extend(ctx context.Context, opts ...locker.Option) error {
	return named(c.key, c.Lease.Extend(ctx, opts...))
}

func (c *claimed) Verify(ctx context.Context) error { return named(c.key, locker.Verify(ctx, c.Lease)) }

func (c *claimed) Bind(ctx context.Context, to any) error {
	return named(c.key, locker.Bind(ctx, c.Lease, to))
}

// Unlock returns nil if the release is not answered. The lock has to last in any case, and it ends by itself.
func (c *claimed) Unlock(ctx context.Context) error {
	err := c.Lease.Unlock(ctx)
	if errors.Is(err, locker.ErrUnavailable) {
		return nil
	}
	return named(c.key, err)
}

// Unwrap lets locker.Verify find the lease of the Client.
func (c *claimed) Unwrap() locker.Lease { return c.Lease }
