package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/golocker/locker"
)

// Config says who a candidate is, and what it does when it leads. Only OnElected is required. OnElected and OnDemoted
// are called by the goroutine that called Run, one after the other. The other functions are called by goroutines that
// end before Run returns.
type Config struct {
	// OnElected is called when the candidate leads, and leads until it returns. Returning resigns: another candidate
	// leads next, if there is one, and otherwise this one again, after a pause that grows to 2 s if terms are short. A
	// function that only starts the work must therefore wait for the end of ctx. At the end of ctx it may return
	// ctx.Err() or nil.
	//
	// ctx ends before anybody else can lead, and when the candidate has to hand on: because of Resign, because Healthy
	// has failed, because the context of Run has ended, or because the Client drains. context.Cause says which. The Err
	// method of ctx reads the clock, as that of locker.Do does. ctx carries the lease for locker.LeaseFrom.
	//
	// An error is given to OnError and OnDemoted. A panic releases the lock and goes on to the caller of Run.
	OnElected func(ctx context.Context, term Term) error

	// OnDemoted is called after each term, when OnElected has returned and the lock is released or lost. cause is nil
	// if OnElected returned nil while the candidate could have gone on. Otherwise it matches one of these, with
	// errors.Is: locker.ErrLost, ErrResigned, ErrUnhealthy, ErrUnrenewed, the cause of the end of Run's context,
	// locker.ErrDraining, locker.ErrUnlocked if OnElected has released the lock, or the error of OnElected. So
	// locker.ErrLost and ErrUnrenewed tell faults from ends that were wanted.
	OnDemoted func(term Term, cause error)

	// OnNewLeader is called when another leader than before is seen, this candidate included, in the order in which
	// they are seen. A leader of a short term may be missed. It is not called when nobody leads, as after a crash;
	// [Observe] tells that. Without OnNewLeader, a candidate does not ask who leads.
	// OnNewLeader runs on a goroutine of its own, for as long as Run does. On a store that does not tell of
	// changes, it learns of leaders of other processes when it looks, about once per third of the TTL; see [Observe].
	OnNewLeader func(leader Leader)

	// Identity is the label of the lock while this candidate leads, by which the others know it. It is for people and
	// logs, and need not be unique. It has the form of a locker.Label. If it is empty, the default of the Locker
	// applies, which is the name of the host and the process ID, such as web-7:4211.
	Identity string

	// Healthy says whether the candidate could lead. It is called when Run begins and once per HealthInterval. While
	// it returns an error, the candidate does not campaign, and hands on if it leads. Its context ends after a
	// HealthInterval, and a call that takes longer counts as failed. nil means that the candidate is always healthy.
	Healthy func(ctx context.Context) error

	// HealthInterval is the time between two calls of Healthy. 0 means 5 seconds.
	HealthInterval time.Duration

	// StopTime is how long OnElected needs to stop. If the lease could not be renewed for so long that only StopTime
	// is left of it, the context of OnElected ends. 0, the default, lets it go on until shortly before the end, 1 % of
	// the TTL and at most 51 ms. StopTime must not be more than half of the TTL, because a healthy lease may have only
	// two thirds left. Otherwise Run returns an error that matches locker.ErrInvalid when the candidate is elected, which
	// is when it learns of the TTL, and OnElected is not called.
	StopTime time.Duration

	// OnOverrun is called if OnElected has not returned in time after its context ended: by the end that the lease had
	// then, or 50 ms after the lease was lost. The error matches [ErrOverrun], and is given to OnError first. OnOverrun
	// decides what happens. If it is nil, the overrun is only reported, and Run goes on waiting for OnElected. A
	// function that panics ends the program, because it is called by a goroutine of its own. So does one that calls
	// os.Exit. The lock is released when OnElected returns, whether OnOverrun has returned or not. The candidate
	// campaigns again when both have returned.
	OnOverrun func(err error)

	// OnError is given everything that went wrong and that Run does not return: campaigns that failed and will be
	// repeated, terms that were lost, errors of OnElected and of Healthy, overruns, and leaders that could not be
	// observed. It may be called concurrently. While the store is down, it is called for each campaign and once for the
	// observer. A candidate that waits for the lock tolerates that for as long as locker.Patience says, by default 6 s.
	// Any other campaign fails with the first fault. The next one begins after 0.1 to 2 s. A leader that cannot renew is
	// reported when its term is lost. A lockertrace.Trace with InDoubt in the context of Run learns of its first renewal
	// that fails. OnElected gets that Trace in its context, too, so it also learns of the locks that OnElected takes with
	// it.
	//
	// With nil, the errors are logged as warnings with slog.Default.
	OnError func(err error)

	// Options are the options of the lock, such as locker.TTL. Without a TTL, that of the Locker applies, 10 seconds
	// by default. After a crash nobody leads for up to a TTL. locker.NoRenewal and locker.MaxHold limit a term.
	Options []locker.Option
}

// Term is the time during which one candidate leads.
type Term struct {
	// Number is the fencing token of the term. It is greater than the numbers of all earlier terms of the key, but in
	// general by more than one: on many stores, it follows a clock in microseconds. Pass it to what the leader
	// works on, which must refuse smaller ones. It is 0 if the store issues no tokens.
	Number uint64

	// Lease is the lease of the lock, for Until and for locker.Verify. Unlock ends the term.
	Lease locker.Lease
}

var (
	// ErrResigned is the cause of the end of a term that [Election.Resign] has ended.
	ErrResigned = errors.New("resigned")

	// ErrUnhealthy is the cause of the end of a term during which Config.Healthy has failed. The error of Healthy
	// matches as well.
	ErrUnhealthy = errors.New("not healthy")

	// ErrUnrenewed is the cause of the end of a term whose lease had not been renewed when no more than Config.StopTime
	// was left of it.
	ErrUnrenewed = errors.New("the lease could not be renewed in time to stop")

	// ErrOverrun means that Config.OnElected has not returned in time after its context ended. If the lease was lost,
	// another candidate may lead at the same time. If it was not, because of Resign for example, the lock is still
	// held and renewed until OnElected returns. The message says which, and Term.Lease.Err tells it to a program.
	ErrOverrun = errors.New("the leader has not stopped in time")
)

func (c *Config) healthInterval() time.Duration {
	if c.HealthInterval > 0 {
		return c.HealthInterval
	}
	return 5 * time.Second
}

// options returns the options of Lock. Each term has a grant of its own: of a lock that candidates of one Client hand
// over to each other, the store shows the first term to those who observe it.
func (c *Config) options() []locker.Option {
	options := append(slices.Clip(c.Options), locker.NoLocalHandover())
	if c.Identity != "" {
		options = append(options, locker.Label(c.Identity))
	}
	return options
}

func (c *Config) validate() error {
	switch {
	case c.OnElected == nil:
		return fmt.Errorf("election: %w: Config.OnElected is missing", locker.ErrInvalid)
	case c.StopTime < 0 || c.HealthInterval < 0:
		return fmt.Errorf("election: %w: a duration is negative", locker.ErrInvalid)
	}
	return nil
}

// fits returns an error if StopTime is too long for the TTL of lease.
func (c *Config) fits(lease locker.Lease) error {
	of, ok := locker.LeaseAs[interface{ TTL() time.Duration }](lease) // or it is not from a Client
	if !ok || c.StopTime <= of.TTL()/2 {
		return nil
	}
	return fmt.Errorf("election: %w: Config.StopTime is %v, which is more than half of the TTL of %v: each term would "+
		"end at once", locker.ErrInvalid, c.StopTime, of.TTL())
}

func (c *Config) report(key string, err error) {
	if c.OnError != nil {
		c.OnError(err)
		return
	}
	slog.Default().Warn("election", "key", key, "error", err)
}
