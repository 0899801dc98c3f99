package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golocker/locker"
)

const (
	// minPause is how long a candidate waits after a term before it campaigns again. Stores without a queue would
	// otherwise elect the candidate that has just resigned, because the others ask less often.
	minPause = 100 * time.Millisecond

	// maxPause limits the pauses, which double while campaigns fail or terms are shorter than shortTerm.
	maxPause = 2 * time.Second

	shortTerm = time.Second
)

// Run campaigns for key, calls the functions of c while it leads, and campaigns again, until ctx ends. It returns nil
// then. It is short for New(l, key, c).Run(ctx); see [Election.Run].
func Run(ctx context.Context, l locker.Locker, key string, c Config) error {
	return New(l, key, c).Run(ctx)
}

// Election is a candidate for one key. All methods are safe for concurrent use.
type Election struct {
	locker locker.Locker
	key    string
	config Config

	mu        sync.Mutex
	running   bool
	candidacy *candidacy    // nil between two campaigns
	unhealthy error         // why the candidate must not lead; nil if it may
	healthy   chan struct{} // closed while unhealthy is nil
}

// New returns a candidate that does nothing until [Election.Run] is called. All candidates for a key need the same
// store, and the same key and prefix. Programs that lock the key by other means take part, too.
func New(l locker.Locker, key string, c Config) *Election {
	return &Election{locker: l, key: key, config: c}
}

// Run campaigns, leads, and campaigns again until ctx ends. It then ends the term, if there is one: the context of
// OnElected ends, Run waits for OnElected, releases the lock, and returns nil. The next candidate leads at once. So a
// program that ends ctx on SIGTERM hands on without a gap when it is replaced. The beginning of Drain of the Client
// (see [locker.Client.Drain]) is an end like that of ctx, with the cause locker.ErrDraining.
//
// Faults of the store are given to Config.OnError, and Run tries again after a pause of 0.1 to 2 s. Run returns an
// error only if trying again is useless. It matches locker.ErrInvalid, locker.ErrForeignKey, locker.ErrClosed or
// errors.ErrUnsupported.
//
// Run must not be called while another Run of the same Election goes on.
func (e *Election) Run(ctx context.Context) error {
	if err := e.begin(); err != nil {
		return err
	}
	defer e.end()
	var helpers sync.WaitGroup
	defer helpers.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	helpers.Go(func() {
		select {
		case <-locker.Draining(e.locker):
			cancel(locker.ErrDraining)
		case <-ctx.Done():
		}
	})
	if e.config.OnNewLeader != nil {
		helpers.Go(func() { e.announce(ctx) })
	}
	if e.config.Healthy != nil {
		helpers.Go(func() { e.monitor(ctx) })
	}
	for failures := 0; e.awaitHealth(ctx); {
		c, err := e.campaign(ctx)
		switch {
		case c.term != nil: // err is of the work
		case errors.Is(err, locker.ErrDraining): // the campaign may learn of it first
			return nil
		case useless(err):
			return err
		}
		if err != nil {
			e.config.report(e.key, err)
		}
		if c.lasted >= shortTerm {
			failures = 0
		}
		sleep(ctx, pause(failures))
		failures++
	}
	return nil
}

// Resign ends the term of this candidate, if it leads, and returns when the lock is released: OnElected has returned
// by then. The candidate campaigns again, behind those that wait already; on a store without Order of
// backend.Capabilities, it pauses first and may be faster than they are. To leave for good, end the context of Run.
//
// Resign returns nil if the candidate does not lead. It returns the cause of ctx's end if ctx ends first; the term
// ends nevertheless. Other errors match locker.ErrReleaseUnknown, or locker.ErrLost if the lock was lost. OnElected
// must not call Resign, because Resign waits for OnElected. To resign, OnElected returns.
func (e *Election) Resign(ctx context.Context) error {
	e.mu.Lock()
	c := e.candidacy
	if c == nil || c.term == nil {
		e.mu.Unlock()
		return nil
	}
	e.mu.Unlock()
	c.cancel(ErrResigned)
	select {
	case <-c.over:
		return c.unlocked
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leading returns the term of this candidate, and whether it leads now. Like locker.Lease.Err, it reads the clock, and
// does not ask the store. Hooks of lockertrace, log handlers and the functions of Config may call it.
func (e *Election) Leading() (Term, bool) {
	e.mu.Lock()
	c := e.candidacy
	if c == nil || c.term == nil {
		e.mu.Unlock()
		return Term{}, false
	}
	ctx, term := c.ctx, *c.term
	e.mu.Unlock()
	if ctx.Err() != nil { // without mu, because this may notice a loss and call hooks, which may ask again
		return Term{}, false
	}
	return term, true
}

func (e *Election) begin() error {
	if err := e.config.validate(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return fmt.Errorf("election: %w: this Election is running already", locker.ErrInvalid)
	}
	e.running, e.unhealthy, e.healthy = true, nil, make(chan struct{})
	if e.config.Healthy != nil {
		e.unhealthy = errNotChecked
	} else {
		close(e.healthy)
	}
	return nil
}

func (e *Election) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = false
}

// useless reports whether trying again after err would not help.
func useless(err error) bool {
	for _, lasting := range []error{
		locker.ErrInvalid, locker.ErrForeignKey, locker.ErrClosed, errors.ErrUnsupported,
	} {
		if errors.Is(err, lasting) {
			return true
		}
	}
	return false
}

// pause returns how long to wait after the given number of failures in a row. It is drawn at random between half of
// the pause and the whole, so that candidates do not return to a store at the same time.
func pause(failures int) time.Duration {
	d := min(minPause<<min(failures, 10), maxPause)
	return max(minPause, d/2+rand.N(d/2))
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
