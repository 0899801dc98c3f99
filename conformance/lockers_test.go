package conformance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

type (
	// lockCall is Lock or TryLock.
	lockCall = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error)
	// manyCall is TryLockMany.
	manyCall = func(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error)
)

// flawedLocker is a Locker whose methods a flaw replaces.
type flawedLocker struct {
	locker.Locker
	lock, tryLock lockCall
	tryLockMany   manyCall
}

func newFlawedLocker(next locker.Locker, flaw func(l *flawedLocker)) locker.Locker {
	l := &flawedLocker{Locker: next, lock: next.Lock, tryLock: next.TryLock}
	l.tryLockMany = func(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
		return locker.TryLockMany(ctx, next, m, opts...)
	}
	flaw(l)
	return l
}

func (l *flawedLocker) Unwrap() locker.Locker { return l.Locker }

func (l *flawedLocker) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return l.lock(ctx, key, opts...)
}

func (l *flawedLocker) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return l.tryLock(ctx, key, opts...)
}

func (l *flawedLocker) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	return l.tryLockMany(ctx, m, opts...)
}

// calls makes a flaw from a function that changes Lock and TryLock.
func calls(wrap func(next lockCall) lockCall) func(*flawedLocker) {
	return func(l *flawedLocker) { l.lock, l.tryLock = wrap(l.lock), wrap(l.tryLock) }
}

// leases makes a flaw from a function that changes the leases of Lock and TryLock.
func leases(change func(lease locker.Lease) locker.Lease) func(*flawedLocker) {
	return calls(func(next lockCall) lockCall {
		return func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
			lease, err := next(ctx, key, opts...)
			if err != nil {
				return nil, err
			}
			return change(lease), nil
		}
	})
}

// with makes a flaw from options that are added to each call.
func with(added ...locker.Option) func(*flawedLocker) {
	return calls(func(next lockCall) lockCall {
		return func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
			return next(ctx, key, append(opts[:len(opts):len(opts)], added...)...)
		}
	})
}

// failsWith makes a flaw from a function that changes the errors of Lock and TryLock.
func failsWith(change func(err error) error) func(*flawedLocker) {
	return calls(func(next lockCall) lockCall {
		return func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
			lease, err := next(ctx, key, opts...)
			if err != nil {
				return nil, change(err)
			}
			return lease, nil
		}
	})
}

// instead makes a function that answers one kind of error for another.
func instead(of error, answer error) func(error) error {
	return func(err error) error {
		if errors.Is(err, of) {
			return answer
		}
		return err
	}
}

// badLease replaces methods of a lease. A nil function keeps the method.
type badLease struct {
	locker.Lease
	key    func() string
	fence  func() uint64
	unlock func(ctx context.Context) error
	extend func(ctx context.Context, opts ...locker.Option) error
	until  func() time.Time
	err    func() error
	done   func() <-chan struct{}
}

func (b *badLease) Unwrap() locker.Lease { return b.Lease }

func (b *badLease) Key() string {
	if b.key != nil {
		return b.key()
	}
	return b.Lease.Key()
}

func (b *badLease) Fence() uint64 {
	if b.fence != nil {
		return b.fence()
	}
	return b.Lease.Fence()
}

func (b *badLease) Unlock(ctx context.Context) error {
	if b.unlock != nil {
		return b.unlock(ctx)
	}
	return b.Lease.Unlock(ctx)
}

func (b *badLease) Extend(ctx context.Context, opts ...locker.Option) error {
	if b.extend != nil {
		return b.extend(ctx, opts...)
	}
	return b.Lease.Extend(ctx, opts...)
}

func (b *badLease) Until() time.Time {
	if b.until != nil {
		return b.until()
	}
	return b.Lease.Until()
}

func (b *badLease) Err() error {
	if b.err != nil {
		return b.err()
	}
	return b.Lease.Err()
}

func (b *badLease) Done() <-chan struct{} {
	if b.done != nil {
		return b.done()
	}
	return b.Lease.Done()
}

// valueless is a context without the values of the one that it wraps.
type valueless struct{ context.Context }

func (valueless) Value(any) any { return nil }

// reasonOf returns why a lease was lost.
func reasonOf(l locker.Lease) locker.LostReason {
	if lost := (*locker.LostError)(nil); errors.As(l.Err(), &lost) {
		return lost.Reason
	}
	return ""
}

// expired reports whether the lease has ended because nobody renewed it.
func expired(l locker.Lease) bool { return reasonOf(l) == locker.LostExpired }

// noticed reports whether the lease has ended because the store reported another owner, or none.
func noticed(l locker.Lease) bool {
	reason := reasonOf(l)
	return reason != "" && reason != locker.LostExpired && reason != locker.LostMaxHold
}

// doneLate closes Done late for one kind of loss.
func doneLate(by time.Duration, kind func(locker.Lease) bool) func(*flawedLocker) {
	return leases(func(l locker.Lease) locker.Lease {
		return &badLease{Lease: l, done: func() <-chan struct{} {
			if errors.Is(l.Err(), locker.ErrUnlocked) {
				return l.Done()
			}
			late := make(chan struct{})
			go func() {
				<-l.Done()
				if kind(l) {
					time.Sleep(by)
				}
				close(late)
			}()
			return late
		}}
	})
}

// repeats makes a second attempt when the store is unavailable. The lease counts from that attempt.
func repeats(l *flawedLocker) {
	next := l.tryLock
	l.tryLock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
		lease, err := next(ctx, key, opts...)
		if errors.Is(err, locker.ErrUnavailable) && ctx.Err() == nil {
			return next(ctx, key, opts...)
		}
		return lease, err
	}
}

// polling polls a lock every five seconds.
func polling(l *flawedLocker) {
	l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
		for {
			time.Sleep(5 * time.Second)
			if lease, err := l.tryLock(ctx, key, opts...); !errors.Is(err, locker.ErrHeld) || ctx.Err() != nil {
				return lease, err
			}
		}
	}
}

// remembers caches for a while that a lock is held.
func remembers(l *flawedLocker) {
	type refusal struct {
		at  time.Time
		err error
	}
	var told sync.Map // the last refusal, by key
	next := l.tryLock
	l.tryLock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
		if last, ok := told.Load(key); ok && time.Since(last.(refusal).at) < 50*time.Millisecond {
			return nil, last.(refusal).err
		}
		lease, err := next(ctx, key, opts...)
		if errors.Is(err, locker.ErrHeld) {
			told.Store(key, refusal{time.Now(), err})
		}
		return lease, err
	}
}

// waitsForOthers does not notify waiters of releases by their own Locker: for a lock that the same Locker holds, it
// polls at long intervals.
func waitsForOthers(l *flawedLocker) {
	var mine sync.Map // the keys of the locks
	next := l.lock
	l.lock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
		if _, ok := mine.Load(key); ok {
			select {
			case <-time.After(slack + slack/2):
			case <-ctx.Done():
			}
		}
		return next(ctx, key, opts...)
	}
	leases(func(lease locker.Lease) locker.Lease {
		mine.Store(lease.Key(), true)
		return &badLease{Lease: lease, unlock: func(ctx context.Context) error {
			mine.Delete(lease.Key())
			return lease.Unlock(ctx)
		}}
	})(l)
}

// ofOwner has change make the lease of a caller from those of the first and of the last caller with the same owner
// value.
func ofOwner(change func(lease, first locker.Lease, last func() locker.Lease) locker.Lease) func(*flawedLocker) {
	return func(l *flawedLocker) {
		var firsts, lasts sync.Map // leases by owner value
		leases(func(lease locker.Lease) locker.Lease {
			first, _ := firsts.LoadOrStore(lease.Token(), lease)
			lasts.Store(lease.Token(), lease)
			return change(lease, first.(locker.Lease), func() locker.Lease {
				last, _ := lasts.Load(lease.Token())
				return last.(locker.Lease)
			})
		})(l)
	}
}

// lockerFlaws are mistakes of lockers over a sound store.
var lockerFlaws = []flaw{
	{name: "TryLock checks that the lock is free, then takes it in a second step", fails: []string{"MutualExclusion"},
		role: polls, client: func(l *flawedLocker) {
			next := l.tryLock
			l.tryLock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
				store, _ := locker.As[inspect.Inspector](l.Locker)
				if i, _ := store.Inspect(ctx, key); i.State == inspect.Free {
					time.Sleep(latency)
					_, _ = store.ForceRelease(ctx, key, "")
				}
				return next(ctx, key, opts...)
			}
		}},
	{name: "a lease reports the name of its key on the store", fails: []string{"LeaseDescribesItself"},
		client: leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, key: func() string { return "locks:" + l.Key() }}
		})},
	{name: "remembers for a while that a lock is held", fails: []string{"UnlockFrees"}, client: remembers},
	{name: "a waiter is not notified of its own locker's release", fails: []string{"WaiterIsServed"},
		client: waitsForOthers},
	{name: "bad input is an outage", fails: []string{"BadInputIsRefused"},
		client: failsWith(instead(locker.ErrInvalid, locker.ErrUnavailable))},
	{name: "Done is a little late", fails: []string{"DoneBeforeUntil"}, // within the limits of real time
		client: doneLate(400*time.Millisecond, expired)},
	{name: "a loss is reported one and a half TTLs late", fails: []string{"LossIsNoticed"},
		client: doneLate(750*time.Millisecond, noticed)},
	{name: "never renews", fails: []string{"RenewalKeeps", "MaxHoldEnds"}, client: with(locker.NoRenewal())},
	{name: "Until stays where it was", fails: []string{"ExtendKeeps"},
		client: leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, until: sync.OnceValue(l.Until)}
		})},
	{name: "extends without the options", fails: []string{"ExtendWithTTLKeeps"},
		client: leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, extend: func(ctx context.Context, _ ...locker.Option) error { return l.Extend(ctx) }}
		})},
	{name: "extend of an expired lease says nothing", fails: []string{"ExtendSparesSuccessor"},
		client: leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, extend: func(ctx context.Context, opts ...locker.Option) error {
				if err := l.Extend(ctx, opts...); !expired(l) {
					return err
				}
				return nil
			}}
		})},
	{name: "unlock of an expired lease says nothing", fails: []string{"UnlockSparesSuccessor"},
		client: leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, unlock: func(ctx context.Context) error {
				ended := expired(l)
				if err := l.Unlock(ctx); !ended {
					return err
				}
				return nil
			}}
		})},
	{name: "a second unlock succeeds", fails: []string{"DoubleUnlock"},
		client: leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, unlock: func(ctx context.Context) error {
				if err := l.Unlock(ctx); !errors.Is(err, locker.ErrUnlocked) {
					return err
				}
				return nil
			}}
		})},
	{name: "callers to whom a lock is handed over have the same token", fails: []string{"CallersShareALock"},
		client: ofOwner(func(lease, first locker.Lease, _ func() locker.Lease) locker.Lease {
			return &badLease{Lease: lease, fence: first.Fence}
		})},
	{name: "a second unlock is one of the owner's last lease", fails: []string{"CallersHaveLeasesOfTheirOwn"},
		client: ofOwner(func(lease, _ locker.Lease, last func() locker.Lease) locker.Lease {
			return &badLease{Lease: lease, unlock: func(ctx context.Context) error {
				if err := lease.Unlock(ctx); err != nil {
					_ = last().Unlock(ctx)
					return err
				}
				return nil
			}}
		})},
	{name: "unlock gives up with the context", fails: []string{"UnlockIgnoresEndedContext"},
		client: leases(func(l locker.Lease) locker.Lease {
			return &badLease{Lease: l, unlock: func(ctx context.Context) error {
				if ctx.Err() != nil {
					return &locker.Error{Op: "unlock", Key: "k", Err: ctx.Err()}
				}
				return l.Unlock(ctx)
			}}
		})},
	{name: "does not check whether a context has ended", fails: []string{"EndedContext"},
		client: calls(func(next lockCall) lockCall {
			return func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
				if ctx.Err() != nil {
					ctx = context.WithoutCancel(ctx)
				}
				return next(ctx, key, opts...)
			}
		})},
	{name: "the error of a cancelled wait does not match ErrHeld", fails: []string{"ContextEndsWaiting"},
		client: failsWith(func(err error) error {
			for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
				if errors.Is(err, end) && errors.Is(err, locker.ErrHeld) {
					return &locker.Error{Op: "lock", Key: "k", Err: end}
				}
			}
			return err
		})},
	{name: "validity counts from the answer", fails: []string{"LatencyCounts"}, client: func(l *flawedLocker) {
		next := l.tryLock
		l.tryLock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
			start := time.Now()
			lease, err := next(ctx, key, opts...)
			if err != nil {
				return nil, err
			}
			took := time.Since(start)
			return &badLease{Lease: lease, until: func() time.Time { return lease.Until().Add(took) }}, nil
		}
	}},
	{name: "repeats what has failed", fails: []string{"LatencyCounts"}, client: repeats},
	{name: "favours the first lockers", fails: []string{"NobodyStarves"}, role: polls, change: func(h *Harness) {
		store := h.Store
		h.Store = func(t testing.TB) Store {
			s, n := store(t), 0
			s.Client = func() locker.Locker {
				if n++; n < crowd {
					return locker.NewClient(s.Open())
				}
				return newFlawedLocker(locker.NewClient(s.Open()), polling)
			}
			return s
		}
	}},
	{name: "forgets MaxHold", fails: []string{"MaxHoldEnds"}, client: with(locker.MaxHold(0))},
	{name: "forgets MinHold", fails: []string{"MinHoldKeeps", "InspectionTells", "ListingIsComplete"},
		client: with(locker.MinHold(0))},
	{name: "a closed locker calls the lock held", fails: []string{"CloseEndsWaiting"},
		client: failsWith(func(err error) error {
			if errors.Is(err, locker.ErrClosed) && !errors.Is(err, locker.ErrDraining) {
				return &locker.Error{Op: "lock", Key: "k", Err: locker.ErrHeld}
			}
			return err
		})},
	{name: "a locker that drains calls the lock held", fails: []string{"DrainEndsWaiting"},
		client: failsWith(func(err error) error {
			if errors.Is(err, locker.ErrDraining) {
				return &locker.Error{Op: "lock", Key: "k", Err: locker.ErrHeld}
			}
			return err
		})},
	{name: "hides the label of the holder", fails: []string{"LabelNamesTheHolder"},
		client: failsWith(func(err error) error {
			if held := (*locker.HeldError)(nil); errors.As(err, &held) {
				held.Label = ""
			}
			return err
		})},
	{name: "a lease hides what it wraps", fails: []string{"VerifyProves", "WantedTells"}, client: func(l *flawedLocker) {
		next := l.tryLock
		l.tryLock = func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
			lease, err := next(ctx, key, opts...)
			if err != nil {
				return nil, err
			}
			return struct{ locker.Lease }{lease}, nil
		}
	}},
}
