package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// storeTries is how many acquisitions are timed.
const storeTries = 5

// ExamineStore examines locks that are not on Redis, by using them as two clients do. Only a backend that is an
// inspect.Examiner tells about its servers and their settings.
func ExamineStore(ctx context.Context, holder, waiter locker.Locker) Report {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	e := &examination{id: rand.Text()[:12]}
	e.servers(ctx, holder)
	key := "locker-doctor:" + e.id
	if e.acquisitions(ctx, holder, key) {
		e.waiting(ctx, holder, waiter, key)
		e.abilities(ctx, holder, key)
	}
	r := Report{Level: OK, Findings: e.findings}
	for _, f := range r.Findings {
		if f.Level.Worse(r.Level) {
			r.Level = f.Level
		}
	}
	return r
}

// servers asks the backend what it knows about its servers.
func (e *examination) servers(ctx context.Context, l locker.Locker) {
	x, ok := locker.As[inspect.Examiner](l)
	if !ok {
		return
	}
	for _, f := range x.Examine(ctx) {
		e.add(f.Check, Level(f.Level), f.Fix, "%s", f.Text)
	}
}

// acquisitions takes a free lock some times. It checks that the store answers, how quickly, and the fencing tokens.
func (e *examination) acquisitions(ctx context.Context, l locker.Locker, key string) bool {
	best, last, grow := time.Hour, uint64(0), true
	for range storeTries {
		start := time.Now()
		lease, err := l.TryLock(ctx, key, locker.TTL(probeTTL))
		best = min(best, time.Since(start))
		if err == nil {
			grow = grow && lease.Fence() > last
			last = lease.Fence()
			err = lease.Unlock(ctx)
		}
		if err != nil {
			failed := func(f Finding) bool { return f.Level == Fail }
			if slices.ContainsFunc(e.findings, failed) { // the error would say the same once more
				e.add("reachable", Fail, "mend first what fails above", "no lock can be taken")
			} else {
				e.add("reachable", Fail, "look at the store; the error has the reason", "%v", err)
			}
			return false
		}
	}
	e.add("reachable", OK, "", "a lock was taken and released")
	level, fix := OK, ""
	if best > probeTTL/20 {
		level, fix = Warn, "use a store that is nearer, or give locks a longer TTL"
	}
	e.add("latency", level, fix, "an acquisition takes %v", best.Round(10*time.Microsecond))
	switch {
	case last == 0:
		e.add("tokens", Warn, "let the work check the lock in another way before it writes",
			"the store issues no fencing tokens")
	case !grow:
		e.add("tokens", Fail, "report this: no holder may get a token that is not above all earlier ones",
			"a later holder got a smaller fencing token")
	default:
		e.add("tokens", OK, "", "fencing tokens grow")
	}
	return true
}

// waiting hands a lock over from one client to the other.
func (e *examination) waiting(ctx context.Context, holder, waiter locker.Locker, key string) {
	of, ok := locker.As[backend.Capable](holder)
	polls := ok && of.Capabilities().Look > 0 // waiters are not notified
	told, err := handOver(ctx, holder, waiter, key, polls)
	switch {
	case err != nil:
		e.add("locks", Fail, "look at the store; the error has the reason", "%v", err)
	case told:
		e.add("locks", OK, "", "a lock was extended, waited for and handed over; waiters are notified")
	case polls:
		e.add("locks", OK, "", "a lock was extended, waited for and handed over; waiters look at intervals")
	default:
		e.add("locks", Warn, "see whether something between the client and the store holds messages back",
			"a lock was extended, waited for and handed over, but the waiter was not notified")
	}
}

// abilities checks what not every store can do.
func (e *examination) abilities(ctx context.Context, l locker.Locker, key string) {
	lease, err := l.TryLock(ctx, key, locker.TTL(probeTTL))
	if err != nil {
		e.add("abilities", Warn, "try again", "%v", err)
		return
	}
	asks := func(what string, ask func() error) {
		switch err := ask(); {
		case errors.Is(err, errors.ErrUnsupported):
			e.add(what, Warn, "do without it, or choose another store", "the store cannot do this")
		case err != nil:
			e.add(what, Fail, "look at the store; the error has the reason", "%v", err)
		default:
			e.add(what, OK, "", "it works")
		}
	}
	asks("verify", func() error { return locker.Verify(ctx, lease) })
	asks("inspect", func() error {
		i, ok := locker.As[inspect.Inspector](l)
		if !ok {
			return errors.ErrUnsupported
		}
		seen, err := i.Inspect(ctx, key)
		if err == nil && (seen.State != inspect.Held || seen.Fence != lease.Fence()) {
			err = fmt.Errorf("a lock that is held is shown as %s, with token %d", seen.State, seen.Fence)
		}
		return err
	})
	if err := lease.Unlock(context.WithoutCancel(ctx)); err != nil {
		e.add("abilities", Warn, "try again", "%v", err)
	}
}
