package locker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

// middle is a middleware of the program, which does something before it returns what it was granted.
type middle struct {
	locker.Locker
	granted func(keys ...string)
	unlock  func() // if it is not nil, the leases call it before they are unlocked
}

func (m middle) lease(l locker.Lease) locker.Lease {
	if m.unlock == nil {
		return l
	}
	return middleLease{l, m.unlock}
}

type middleLease struct {
	locker.Lease
	unlock func()
}

func (l middleLease) Unlock(ctx context.Context) error {
	l.unlock()
	return l.Lease.Unlock(ctx)
}

func (m middle) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := m.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	m.granted(key)
	return m.lease(l), nil
}

func (m middle) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := m.Locker.TryLock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	m.granted(key)
	return m.lease(l), nil
}

func (m middle) TryLockMany(ctx context.Context, all locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	ls, err := locker.TryLockMany(ctx, m.Locker, all, opts...)
	if err != nil {
		return nil, err
	}
	m.granted(all.Keys...)
	for i, l := range ls {
		ls[i] = m.lease(l)
	}
	return ls, nil
}

// A panic in code of the program leaves no lock that is taken, let alone renewed, also if another panic follows while
// the locks are released.
func TestPanicLeavesNoLock(t *testing.T) {
	const boom = "boom"
	second := func(keys ...string) {
		if keys[len(keys)-1] != "a" {
			panic(boom)
		}
	}
	again := func() { panic(boom) }
	trace := func(ctx context.Context, hook string) context.Context {
		h := lockertrace.Trace{}
		granted := 0
		switch hook {
		case "Attempted, first", "Attempted, second":
			h.Attempted = func(a lockertrace.Attempt) {
				if a.Err == nil {
					granted++
				}
				if granted == map[string]int{"Attempted, first": 1, "Attempted, second": 2}[hook] {
					panic(boom)
				}
			}
		case "Waiting":
			h.Waiting = func(lockertrace.Waiting) { panic(boom) }
		case "Woken":
			h.Woken = func(lockertrace.Wake) { panic(boom) }
		case "LeaseOf":
			h.LeaseOf = func(i int) *lockertrace.Trace {
				if i == 1 {
					panic(boom)
				}
				return nil
			}
		}
		return lockertrace.With(ctx, &h)
	}
	single := func(call func(locker.Locker, context.Context, string, ...locker.Option) (locker.Lease, error)) call {
		return func(ctx context.Context, l locker.Locker) { _, _ = call(l, ctx, "b", locker.TTL(time.Hour)) }
	}
	several := func(
		f func(context.Context, locker.Locker, []string, ...locker.Option) (*locker.AllLease, error),
	) call {
		return func(ctx context.Context, l locker.Locker) {
			_, _ = f(ctx, l, []string{"a", "b", "c"}, locker.TTL(time.Hour))
		}
	}
	lock, tryLock := single(locker.Locker.Lock), single(locker.Locker.TryLock)
	lockAll, tryLockAll := several(locker.LockAll), several(locker.TryLockAll)
	wrapped := func(unlock func()) locker.Middleware {
		return func(l locker.Locker) locker.Locker { return middle{l, second, unlock} }
	}
	hidden := func(l locker.Locker) locker.Locker { return plain{l} }
	for name, tt := range map[string]struct {
		call call
		hook string
		wrap []locker.Middleware
		held bool // another client has c, and releases it a second later
	}{
		"attempt, Lock":                  {call: lock, hook: "Attempted, first"},
		"attempt, TryLock":               {call: tryLock, hook: "Attempted, first"},
		"attempt, step":                  {call: lockAll, hook: "Attempted, first"},
		"second attempt, LockAll":        {call: lockAll, hook: "Attempted, second", wrap: []locker.Middleware{hidden}},
		"second attempt, TryLockAll":     {call: tryLockAll, hook: "Attempted, second", wrap: []locker.Middleware{hidden}},
		"second lease of a step":         {call: lockAll, hook: "LeaseOf"},
		"waiting":                        {call: lockAll, hook: "Waiting", held: true},
		"woken":                          {call: lockAll, hook: "Woken", held: true},
		"middleware, step":               {call: lockAll, wrap: []locker.Middleware{wrapped(nil)}},
		"middleware, LockAll":            {call: lockAll, wrap: []locker.Middleware{hidden, wrapped(nil)}},
		"middleware, TryLockAll":         {call: tryLockAll, wrap: []locker.Middleware{hidden, wrapped(nil)}},
		"middleware, again at Unlock":    {call: lockAll, wrap: []locker.Middleware{hidden, wrapped(again)}},
		"middleware, again, without one": {call: tryLockAll, wrap: []locker.Middleware{wrapped(again)}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				s := memory.NewBackend()
				c, other := locker.NewClient(s), locker.NewClient(s)
				if tt.held {
					held := mustLock(t, other, "c")
					time.AfterFunc(time.Second, func() { mustUnlock(t, held) })
				}
				func() {
					defer func() {
						if p := recover(); p != boom {
							t.Errorf("panic %v", p)
						}
					}()
					tt.call(trace(t.Context(), tt.hook), locker.Wrap(c, tt.wrap...))
				}()
				time.Sleep(2 * time.Second)
				mustUnlock(t, mustLockAll(t, other, []string{"a", "b", "c"}))
				start := time.Now()
				_, _ = c.Close(), other.Close()
				if took := time.Since(start); took > 0 {
					t.Errorf("Close took %v", took)
				}
			})
		})
	}
}

// call is one of the calls that acquire.
type call func(ctx context.Context, l locker.Locker)

// A Close during LockAll releases the locks that LockAll has, because nobody will.
func TestCloseReleasesWhatLockAllHas(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		other := locker.NewClient(s.Backend)
		held := mustLock(t, other, "z")
		failed := make(chan error)
		go func() {
			_, err := locker.LockAll(t.Context(), l, []string{"a", "b", "z"}, locker.TTL(time.Hour))
			failed <- err
		}()
		synctest.Wait()
		s.on("release", func(_ context.Context, next func() error) error {
			if s.closed {
				t.Error("a release after the store was closed")
			}
			time.Sleep(10 * time.Millisecond)
			return next()
		})
		start := time.Now()
		_ = unhidden(l).(*locker.Client).Close()
		wantErr(t, <-failed, locker.ErrClosed)
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("Close took %v", took)
		}
		mustUnlock(t, mustLockAll(t, other, []string{"a", "b"}))
		mustUnlock(t, held)
		_ = other.Close()
	})
}

// tenant is a middleware that changes keys.
type tenant struct{ locker.Locker }

func (n tenant) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	return n.Locker.Lock(ctx, "tenant/"+key, opts...)
}

// A Close during LockAll also releases locks whose keys a middleware has changed.
func TestCloseReleasesWhatLockAllHasUnderOtherKeys(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		other := locker.NewClient(s.Backend)
		held := mustLock(t, other, "tenant/z")
		failed := make(chan error)
		go func() {
			_, err := locker.LockAll(t.Context(), tenant{c}, []string{"a", "b", "z"}, locker.TTL(time.Hour))
			failed <- err
		}()
		synctest.Wait()
		start := time.Now()
		_ = c.Close()
		wantErr(t, <-failed, locker.ErrClosed)
		if took := time.Since(start); took > 0 {
			t.Errorf("Close took %v", took)
		}
		mustUnlock(t, mustLockAll(t, other, []string{"tenant/a", "tenant/b"}))
		mustUnlock(t, held)
		_ = other.Close()
	})
}

// unhidden returns the Locker that l hides.
func unhidden(l locker.Locker) locker.Locker {
	if p, ok := l.(plain); ok {
		return p.Locker
	}
	return l
}

// A Close does not release the locks of a lease that LockAll has returned, and does not wait for it.
func TestCloseSparesWhatLockAllHasReturned(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		lease := mustLockAll(t, l, []string{"a", "b"}, locker.TTL(time.Hour))
		start := time.Now()
		_ = unhidden(l).(*locker.Client).Close()
		if took := time.Since(start); took > 0 {
			t.Errorf("Close took %v", took)
		}
		wantErr(t, lease.Err(), locker.ErrLost, locker.ErrClosed)
		if s.count("release") > 0 {
			t.Error("a lock was released")
		}
	})
}

// While LockAll waits, it tolerates a failing store for its patience and no longer, as Lock does, whatever the failure
// does to the locks that it has.
func TestPatienceOfLockAll(t *testing.T) {
	const patience = 10 * ttl
	for _, down := range []time.Duration{patience / 2, 2 * patience} {
		steps(t, func(t *testing.T, s *store, l locker.Locker) {
			held := mustLock(t, locker.NewClient(s.Backend), "b", locker.TTL(20*time.Minute), locker.NoRenewal())
			var begun time.Time
			time.AfterFunc(ttl, func() {
				begun = time.Now()
				s.on("acquire", unavailable)
				s.on("acquire many", unavailable)
				s.on("extend", unavailable)
				time.Sleep(down)
				s.on("acquire", nil)
				s.on("acquire many", nil)
				s.on("extend", nil)
				_ = held.Unlock(context.Background())
			})
			lease, err := locker.LockAll(t.Context(), l, []string{"a", "b"}, locker.TTL(ttl), locker.Patience(patience))
			took := time.Since(begun)
			time.Sleep(down)
			switch {
			case down > patience:
				wantErr(t, err, locker.ErrUnavailable)
				if took < patience || took > patience+2*time.Second {
					t.Errorf("it returned %v after the store was down, want %v", took, patience)
				}
			case err != nil:
				t.Errorf("the store was down for %v: %v after %v", down, err, took)
			default:
				mustUnlock(t, lease)
			}
		})
	}
}

// A call that loses its locks again and again asks the store less and less often.
func TestLockAllPausesBeforeItBeginsAnew(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		slow := func(_ context.Context, next func() error) error {
			defer time.Sleep(locker.MinTTL * 2 / 5)
			return next()
		}
		s.on("acquire", slow)
		s.on("acquire many", func(context.Context, func() error) error { return errors.ErrUnsupported })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := locker.LockAll(ctx, l, []string{"a", "b", "c"}, locker.TTL(locker.MinTTL), locker.NoRenewal())
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it returned %v", err)
		}
		if n := s.count("acquire"); n > 3*120 {
			t.Errorf("%d attempts in a minute", n)
		}
	})
}

// needy is a middleware that cannot do without keys.
type needy struct{ locker.Locker }

func (n needy) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	_ = m.Keys[0]
	return locker.TryLockMany(ctx, n.Locker, m, opts...)
}

func TestTryLockManyWithoutKeysIsInvalid(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		for _, keys := range [][]string{nil, {}} {
			_, err := locker.TryLockMany(t.Context(), needy{c}, locker.Many{Keys: keys})
			wantErr(t, err, locker.ErrInvalid)
		}
	})
}
