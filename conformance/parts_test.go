package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/semaphore"
)

// permits makes a flaw of a harness from a function that changes semaphores of package semaphore. inner is the Locker
// that they are made of.
func permits(flaw func(l *flawedLocker, inner locker.Locker, n, weight int)) func(h *Harness) {
	return func(h *Harness) {
		h.semaphore = func(inner locker.Locker, n, weight int) locker.Locker {
			return newFlawedLocker(semaphore.New(inner, n).Weight(weight), func(l *flawedLocker) {
				flaw(l, inner, n, weight)
			})
		}
	}
}

// everyPermit makes a flaw from one that any Locker can have.
func everyPermit(flaw func(l *flawedLocker)) func(h *Harness) {
	return permits(func(l *flawedLocker, _ locker.Locker, _, _ int) { flaw(l) })
}

// views makes a flaw of a harness from a function that changes the locks of package rwlock.
func views(flaw func(rw *rwLock)) func(h *Harness) {
	return func(h *Harness) {
		h.rwLock = func(l locker.Locker) rwLock {
			rw := packageRWLock(l)
			flaw(&rw)
			return rw
		}
	}
}

// everyKind makes a flaw of each kind of holder from one that any Locker can have.
func everyKind(flaw func(l *flawedLocker)) func(h *Harness) {
	return views(func(rw *rwLock) {
		for _, l := range []*locker.Locker{&rw.shared, &rw.exclusive, &rw.upgradeable} {
			*l = newFlawedLocker(*l, flaw)
		}
	})
}

// asksAgain has Lock of k ask again and again, as a program does that knows only TryLock. With a lease in its context,
// it asks once.
func asksAgain(l *flawedLocker) {
	next := l.lock
	l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
		if _, ok := locker.LeaseFrom(ctx); ok || key != "k" {
			return next(ctx, key, opts...)
		}
		for {
			lease, err := l.tryLock(ctx, key, opts...)
			if !errors.Is(err, locker.ErrHeld) {
				return lease, err
			}
			select {
			case <-time.After(rand.N(10 * time.Millisecond)):
			case <-ctx.Done():
				return nil, &locker.Error{Op: "lock", Key: key, Err: ctx.Err()}
			}
		}
	}
}

// goesOn has Lock go on in the background when its context ends, and keep what it gets.
func goesOn(l *flawedLocker) {
	next := l.lock
	l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
		done := make(chan struct{})
		var late locker.Lease
		var failed error
		go func() {
			defer close(done)
			late, failed = next(context.WithoutCancel(ctx), key, opts...)
		}()
		select {
		case <-done:
			return late, failed
		case <-ctx.Done():
			return nil, &locker.Error{Op: "lock", Key: key, Err: ctx.Err()}
		}
	}
}

// givesBack has Lock give back what it has waited for soon after it has returned, and the lease say nothing of it.
func givesBack(l *flawedLocker) {
	next := l.lock
	l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
		start := time.Now()
		lease, err := next(ctx, key, opts...)
		if err != nil || time.Since(start) < 5*latency {
			return lease, err
		}
		go func() {
			time.Sleep(2 * latency)
			_ = lease.Unlock(context.WithoutCancel(ctx))
		}()
		return &badLease{Lease: lease, unlock: func(context.Context) error { return nil }}, nil
	}
}

// semaphoreFlaws are mistakes of semaphores over a sound store.
var semaphoreFlaws = []flaw{
	{name: "a permit that was waited for is returned with the call", fails: []string{"PermitsAreLimited"},
		change: permits(func(l *flawedLocker, _ locker.Locker, _, weight int) {
			if weight == 1 {
				givesBack(l)
			}
		})},
	{name: "a call that finds too few permits keeps one", fails: []string{"PermitsAreRefused"},
		change: permits(func(l *flawedLocker, inner locker.Locker, n, weight int) {
			next := l.tryLock
			l.tryLock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
				lease, err := next(ctx, key, opts...)
				if errors.Is(err, locker.ErrHeld) && 1 < weight && weight < n {
					_, _ = semaphore.New(inner, n).TryLock(ctx, key, opts...)
				}
				return lease, err
			}
		})},
	{name: "many permits are acquired one after the other", fails: []string{"PermitsAllOrNothing"},
		change: permits(func(l *flawedLocker, inner locker.Locker, n, weight int) {
			if weight < 3 {
				return
			}
			l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
				var all []locker.Lease
				for range weight {
					lease, err := semaphore.New(inner, n).Lock(ctx, key, opts...)
					if err != nil {
						return nil, err
					}
					all = append(all, lease)
					time.Sleep(time.Millisecond)
				}
				return &badLease{Lease: all[0], unlock: func(ctx context.Context) error {
					for _, lease := range all {
						_ = lease.Unlock(ctx)
					}
					return nil
				}}, nil
			}
		})},
	{name: "a caller waits for the first of many permits", fails: []string{"ReturnedPermitIsTaken"},
		change: permits(func(l *flawedLocker, inner locker.Locker, n, weight int) {
			if weight > 1 || n < 3 {
				return
			}
			next := l.tryLock
			l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
				if lease, err := next(ctx, key, opts...); !errors.Is(err, locker.ErrHeld) {
					return lease, err
				}
				return inner.Lock(ctx, semaphore.New(inner, n).Locks(key)[0], opts...)
			}
		})},
	{name: "callers that wait ask again and again", fails: []string{"PermitsServedInOrder"},
		change: everyPermit(asksAgain)},
	{name: "the permit of a crashed holder is renewed", fails: []string{"CrashedPermitExpires"},
		change: everyPermit(with(locker.Renewal()))},
	{name: "a call goes on when its caller has left", fails: []string{"CancelledPermitsLeaveNothing"},
		change: everyPermit(goesOn)},
	{name: "programs with another limit have other permits", fails: []string{"LimitsMayDiffer"},
		change: permits(func(l *flawedLocker, _ locker.Locker, n, _ int) {
			calls(func(next lockCall) lockCall {
				return func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
					return next(ctx, fmt.Sprint(key, n), opts...)
				}
			})(l)
		})},
	{name: "the loss of a permit is told too late", fails: []string{"LostPermitIsTold"},
		change: everyPermit(doneLate(time.Second, noticed))},
	{name: "all permits have one token", fails: []string{"PermitsHaveNumbers"},
		change: everyPermit(leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, fence: func() uint64 { return 1 }}
		}))},
	{name: "holders of permits do not learn that others wait", fails: []string{"PermitsAreWanted"},
		change: everyPermit(leases(func(l locker.Lease) locker.Lease { return wantedBy{l, nil} }))},
	{name: "permits are wanted although nobody waits", fails: []string{"PermitsAreWanted"},
		change: everyPermit(leases(func(l locker.Lease) locker.Lease { return wantedBy{l, closed()} }))},
}

// rwlockFlaws are mistakes of locks for readers and writers over a sound store.
var rwlockFlaws = []flaw{
	{name: "a reader that does not wait is an upgradeable one", fails: []string{"ReadersAreTogether"},
		change: views(func(rw *rwLock) {
			upgradeable := rw.upgradeable.TryLock
			rw.shared = newFlawedLocker(rw.shared, func(l *flawedLocker) { l.tryLock = upgradeable })
		})},
	{name: "what a writer has waited for is returned with the call", fails: []string{"WriterIsAlone"},
		change: views(func(rw *rwLock) { rw.exclusive = newFlawedLocker(rw.exclusive, givesBack) })},
	{name: "a writer asks again and again", fails: []string{"WriterWaitsForReaders"},
		change: views(func(rw *rwLock) { rw.exclusive = newFlawedLocker(rw.exclusive, asksAgain) })},
	{name: "a reader asks again and again", fails: []string{"ReaderPrecedesLaterWriters"},
		change: views(func(rw *rwLock) { rw.shared = newFlawedLocker(rw.shared, asksAgain) })},
	{name: "an upgrade is Unlock and Lock", fails: []string{"UpgradeLeavesNoGap"},
		change: views(func(rw *rwLock) { rw.upgrade = unlockAndLock(rw.exclusive) })},
	{name: "a downgrade is Unlock and Lock", fails: []string{"DowngradeLeavesNoGap"},
		change: views(func(rw *rwLock) { rw.downgrade = unlockAndLock(rw.shared) })},
	{name: "the loss of a part is told too late", fails: []string{"LostPartIsTold"},
		change: everyKind(doneLate(time.Second, noticed))},
	{name: "what a crashed holder has is renewed", fails: []string{"CrashedHolderExpires"},
		change: everyKind(with(locker.Renewal()))},
	{name: "a writer goes on when its caller has left", fails: []string{"CancelledReadersAndWritersLeaveNothing"},
		change: views(func(rw *rwLock) { rw.exclusive = newFlawedLocker(rw.exclusive, goesOn) })},
	{name: "a writer keeps the token that it had as a reader", fails: []string{"TokensOfReadersAndWriters"},
		change: views(func(rw *rwLock) {
			upgrade := rw.upgrade
			rw.upgrade = func(ctx context.Context, lease locker.Lease) (locker.Lease, error) {
				before := lease.Fence()
				lease, err := upgrade(ctx, lease)
				if err != nil {
					return nil, err
				}
				return &badLease{Lease: lease, fence: func() uint64 { return before }}, nil
			}
		})},
	{name: "a call does not see the lease of its caller", fails: []string{"HolderDoesNotWaitForItself"},
		change: everyKind(func(l *flawedLocker) {
			next := l.lock
			l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
				return next(valueless{ctx}, key, opts...)
			}
		})},
	{name: "readers do not learn that a writer waits", fails: []string{"ReadersAndWritersAreWanted"},
		change: views(func(rw *rwLock) {
			rw.shared = newFlawedLocker(rw.shared, leases(func(l locker.Lease) locker.Lease { return wantedBy{l, nil} }))
		})},
	{name: "a writer that was upgraded is wanted as a reader", fails: []string{"ReadersAndWritersAreWanted"},
		change: views(func(rw *rwLock) { rw.upgrade = wantedAsBefore(rw.upgrade) })},
	{name: "a reader that was downgraded is wanted as a writer", fails: []string{"ReadersAndWritersAreWanted"},
		change: views(func(rw *rwLock) { rw.downgrade = wantedAsBefore(rw.downgrade) })},
	{name: "a writer is wanted although nobody waits", fails: []string{"ReadersAndWritersAreWanted"},
		change: views(func(rw *rwLock) {
			rw.exclusive = newFlawedLocker(rw.exclusive, leases(func(l locker.Lease) locker.Lease {
				return wantedBy{l, closed()}
			}))
		})},
}

// wantedBy is a lease whose channel of locker.Wanted is another one.
type wantedBy struct {
	locker.Lease
	wanted <-chan struct{}
}

func (l wantedBy) Unwrap() locker.Lease    { return l.Lease }
func (l wantedBy) Wanted() <-chan struct{} { return l.wanted }

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// wantedAsBefore is an upgrade or a downgrade whose lease has the channel of the one that has ended.
func wantedAsBefore(
	next func(ctx context.Context, lease locker.Lease) (locker.Lease, error),
) func(ctx context.Context, lease locker.Lease) (locker.Lease, error) {
	return func(ctx context.Context, before locker.Lease) (locker.Lease, error) {
		wanted := locker.Wanted(before)
		lease, err := next(ctx, before)
		if err != nil {
			return nil, err
		}
		return wantedBy{lease, wanted}, nil
	}
}

// unlockAndLock is an upgrade or a downgrade by hand.
func unlockAndLock(l locker.Locker) func(ctx context.Context, lease locker.Lease) (locker.Lease, error) {
	return func(ctx context.Context, lease locker.Lease) (locker.Lease, error) {
		if err := lease.Unlock(ctx); err != nil {
			return nil, err
		}
		return l.Lock(ctx, lease.Key(), locker.TTL(longTTL))
	}
}
