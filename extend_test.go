package locker_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
)

// wantUntil checks how long the lease is valid from now on.
func wantUntil(t *testing.T, l locker.Lease, want time.Duration) {
	t.Helper()
	if d := time.Until(l.Until()); d > want || d < want-want/50-3*time.Millisecond {
		t.Errorf("valid for %v, want %v", d, want)
	}
}

// After a longer TTL, the lease outlives the old one without a renewal, and renewals keep to the new one.
func TestExtendWithATTL(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		for _, opts := range [][]locker.Option{nil, {locker.NoRenewal()}} {
			l := mustLock(t, c, "k", append(opts, locker.TTL(ttl))...)
			if err := l.Extend(t.Context(), locker.TTL(100*ttl)); err != nil {
				t.Fatal(err)
			}
			wantUntil(t, l, 100*ttl)
			before := s.count("extend")
			time.Sleep(30 * ttl)
			if n := s.count("extend") - before; n != 0 {
				t.Errorf("%d renewals within 0.3 of the new TTL", n)
			}
			if err := l.Err(); err != nil {
				t.Error(err)
			}
			mustUnlock(t, l)
		}
		l := mustLock(t, c, "k", locker.TTL(ttl))
		if err := l.Extend(t.Context(), locker.TTL(10*ttl)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * ttl)
		if d := time.Until(l.Until()); d < 6*ttl {
			t.Errorf("after renewals, valid for %v", d)
		}
		mustUnlock(t, l)
	})
}

// A smaller TTL shortens nothing, and is what later renewals give.
func TestExtendWithASmallerTTL(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(100*ttl))
		until := l.Until()
		if err := l.Extend(t.Context(), locker.TTL(ttl)); err != nil {
			t.Fatal(err)
		}
		if !l.Until().Equal(until) {
			t.Errorf("Until moved by %v", l.Until().Sub(until))
		}
		before := s.count("extend")
		time.Sleep(10 * ttl)
		if n := s.count("extend") - before; n < 29 || n > 36 {
			t.Errorf("%d renewals in 10 TTLs", n)
		}
		time.Sleep(100 * ttl)
		if d := time.Until(l.Until()); d > ttl || d < ttl/2 {
			t.Errorf("valid for %v", d)
		}
		mustUnlock(t, l)
	})
}

func TestExtendWithATTLThatFails(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		for _, d := range []time.Duration{-1, 0, locker.MinTTL - 1, locker.MaxTTL + 1} {
			wantErr(t, l.Extend(t.Context(), locker.TTL(d)), locker.ErrInvalid)
		}
		if s.count("extend") != 0 {
			t.Error("something was sent")
		}
		s.on("extend", unavailable)
		wantErr(t, l.Extend(t.Context(), locker.TTL(10*ttl)), locker.ErrUnavailable)
		s.on("extend", nil)
		time.Sleep(10 * ttl)
		if d := time.Until(l.Until()); d > ttl || d < ttl/2 {
			t.Errorf("after renewals, valid for %v", d)
		}
		mustUnlock(t, l)
	})
}

// An option that has no effect on Extend is refused, whatever its value, and nothing is sent.
func TestExtendRefusesOtherOptions(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		lease := mustLock(t, c, "k", locker.TTL(ttl), locker.NoRenewal())
		all := mustLockAll(t, c, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		for name, opt := range map[string]locker.Option{
			"NoRenewal": locker.NoRenewal(), "Renewal": locker.Renewal(), "MaxHold": locker.MaxHold(0),
			"MinHold": locker.MinHold(0), "Patience": locker.Patience(locker.DefaultPatience),
			"Label": locker.Label(""), "NoLocalHandover": locker.NoLocalHandover(),
		} {
			for _, l := range []locker.Lease{lease, all} {
				for _, opts := range [][]locker.Option{{opt}, {locker.TTL(10 * ttl), opt}, {opt, locker.TTL(10 * ttl)}} {
					if err := l.Extend(t.Context(), opts...); !errors.Is(err, locker.ErrInvalid) {
						t.Errorf("%s: got %v, want ErrInvalid", name, err)
					}
				}
			}
		}
		if s.count("extend") != 0 {
			t.Error("something was sent")
		}
		wantUntil(t, lease, ttl)
		mustUnlock(t, lease)
		mustUnlock(t, all)
	})
}

// A renewal that is in progress meanwhile is the only one, and the next keeps to the new TTL.
func TestExtendWithATTLDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		l := mustLock(t, c, "k", locker.TTL(ttl))
		var renewed atomic.Bool
		s.on("extend", func(_ context.Context, next func() error) error {
			if !renewed.Swap(true) {
				time.Sleep(ttl / 10)
			}
			return next()
		})
		time.Sleep(ttl/3 + ttl/20) // the renewal is in progress
		if err := l.Extend(t.Context(), locker.TTL(50*ttl)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := s.count("extend")
		time.Sleep(15 * ttl)
		if n := s.count("extend") - before; n != 0 {
			t.Errorf("%d renewals within 0.3 of the new TTL", n)
		}
		mustUnlock(t, l)
	})
}

func TestExtendWithATTLOfSeveralLocks(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		l := mustLockAll(t, c, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		if err := l.Extend(t.Context(), locker.TTL(10*ttl)); err != nil {
			t.Fatal(err)
		}
		wantUntil(t, l, 10*ttl)
		mustUnlock(t, l)
	})
}

// panicking is a Locker that panics once, and whose leases panic once.
type panicking struct {
	locker.Locker
	lock, unlock bool
}

func (p *panicking) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	if !p.lock {
		p.lock = true
		panic("lock")
	}
	lease, err := p.Locker.Lock(ctx, key, opts...)
	return panickingLease{lease, p}, err
}

type panickingLease struct {
	locker.Lease
	p *panicking
}

func (l panickingLease) Unlock(ctx context.Context) error {
	err := l.Lease.Unlock(ctx)
	if !l.p.unlock {
		l.p.unlock = true
		panic("unlock")
	}
	return err
}

// Middleware and hooks may panic. A Mutex then does not stay locked.
func TestMutexAfterAPanic(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		m := locker.NewMutex(&panicking{Locker: c}, "k")
		panics := func(f func()) any {
			var p any
			func() {
				defer func() { p = recover() }()
				f()
			}()
			return p
		}
		free := func(after string) {
			t.Helper()
			locked := make(chan struct{})
			go func() {
				defer close(locked)
				m.Lock()
			}()
			select {
			case <-locked:
			case <-time.After(time.Minute):
				t.Fatalf("after a panic in %s, Lock hangs", after)
			}
		}
		if p := panics(m.Lock); p != "lock" {
			t.Errorf("Lock: %v", p)
		}
		free("Lock")
		if p := panics(m.Unlock); p != "unlock" {
			t.Errorf("Unlock: %v", p)
		}
		free("Unlock")
		m.Unlock()
	})
}

// Goroutines that share a Mutex hand the lock over to each other.
func TestMutexIsHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		m := locker.NewMutex(c, "k", locker.TTL(time.Minute))
		var users sync.WaitGroup
		for range 10 {
			users.Go(func() {
				for range 10 {
					m.Lock()
					time.Sleep(time.Millisecond)
					m.Unlock()
				}
			})
		}
		users.Wait()
		if n := s.count("release"); n > 5 { // 100 ms of work, and 50 ms of hand-overs
			t.Errorf("%d releases for 100 holds", n)
		}
	})
}

// A goroutine that has lost the lock keeps the others out until it has called Unlock. If the lock of one of them is
// lost by then, too, it acquires another one.
func TestMutexAfterALoss(t *testing.T) {
	for _, late := range []time.Duration{0, 2 * ttl} {
		bubble(t, func(t *testing.T, s *store, c *locker.Client) {
			m := locker.NewMutex(c, "k", locker.TTL(ttl), locker.NoRenewal())
			m.Lock()
			locked := make(chan struct{})
			go func() {
				defer close(locked)
				m.Lock()
			}()
			time.Sleep(ttl + late)
			select {
			case <-locked:
				t.Fatal("the next one does not wait")
			default:
			}
			func() {
				defer func() {
					if err, _ := recover().(error); !errors.Is(err, locker.ErrLost) {
						t.Errorf("a loss: panic with %v", err)
					}
				}()
				m.Unlock()
			}()
			<-locked
			m.Unlock() // panics if the lock is lost
			mustUnlock(t, mustLock(t, c, "k"))
		})
	}
}

func TestMutex(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		m, other := locker.NewMutex(c, "k", locker.TTL(ttl)), locker.NewMutex(c, "k", locker.TTL(ttl))
		var users sync.WaitGroup
		counter := 0
		for _, m := range []interface {
			Lock()
			Unlock()
		}{m, m, other} {
			users.Go(func() {
				for range 5 {
					m.Lock()
					n := counter
					time.Sleep(time.Millisecond)
					counter = n + 1
					m.Unlock()
				}
			})
		}
		users.Wait()
		if counter != 15 {
			t.Errorf("counted %d, want 15", counter)
		}
		panics := func(what string, want error, f func()) {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, want) {
					t.Errorf("%s: panic with %v", what, err)
				}
			}()
			f()
		}
		panics("a store that fails", locker.ErrUnavailable, func() {
			s.on("acquire", unavailable)
			m.Lock()
		})
		s.on("acquire", nil)
		panics("a loss", locker.ErrLost, func() {
			m.Lock()
			s.on("extend", unavailable)
			time.Sleep(2 * ttl)
			m.Unlock()
		})
		panics("a loss, and a release that fails", locker.ErrLost, func() {
			s.on("extend", nil)
			m.Lock()
			s.on("extend", unavailable)
			s.on("release", unavailable)
			time.Sleep(2 * ttl)
			m.Unlock()
		})
		m.Lock()   // it can be used again
		m.Unlock() //nolint:staticcheck // the section is empty on purpose
		for what, m := range map[string]sync.Locker{"once more": m, "never locked": locker.NewMutex(c, "other")} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: no panic", what)
					}
				}()
				m.Unlock()
			}()
		}
	})
}
