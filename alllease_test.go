package locker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// one returns the Lease of one of the locks of a, as far as steal needs it.
type one struct {
	locker.Lease
	key, token string
}

func (o one) Key() string   { return o.key }
func (o one) Token() string { return o.token }

// When one lock is lost, the lease is, and the others stay taken until Unlock.
func TestAllLeaseIsLostWithOneLock(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b", "c"}, locker.TTL(ttl))
		s.steal(t, one{key: "b", token: s.tokens[1]}, time.Minute)
		done := lease.Done()
		start := time.Now()
		<-done
		if took := time.Since(start); took > ttl {
			t.Errorf("Done was closed after %v", took)
		}
		err := lease.Err()
		wantErr(t, err, locker.ErrLost)
		wantKey(t, err, "b")
		if lost := (*locker.LostError)(nil); !errors.As(err, &lost) || lost.Reason != locker.LostTakenOver {
			t.Errorf("got %v", err)
		}
		if lease.Until().After(time.Now()) {
			t.Error("Until is after the end")
		}
		time.Sleep(3 * ttl)
		for _, key := range []string{"a", "c"} {
			_, err := c.TryLock(t.Context(), key)
			wantErr(t, err, locker.ErrHeld)
		}
		wantErr(t, lease.Extend(t.Context()), locker.ErrLost)
		wantErr(t, locker.Verify(t.Context(), lease), locker.ErrLost)
		err = lease.Unlock(t.Context())
		wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
		wantKey(t, err, "b")
		mustUnlock(t, mustLockAll(t, c, []string{"a", "c"}))
		if lease.Err() == nil || !isDone(lease) {
			t.Error("the lease has come back")
		}
	})
}

// Err tells the loss although nobody has asked for Done.
func TestAllLeaseNoticesALossWithoutDone(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		time.Sleep(ttl)
		wantErr(t, lease.Err(), locker.ErrLost)
		if !isDone(lease) {
			t.Error("Done is open")
		}
		_ = lease.Unlock(t.Context())
	})
}

// A release that fails does not keep the others from being released, and a second call tries only that one again.
func TestUnlockReleasesAllWhateverFails(t *testing.T) {
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		lease := mustLockAll(t, l, []string{"a", "b", "c"})
		first := true
		s.on("release", func(_ context.Context, next func() error) error {
			s.mu.Lock()
			fail := first
			first = false
			s.mu.Unlock()
			if fail {
				return locker.ErrUnavailable
			}
			return next()
		})
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable)
		if n := s.count("release"); n != 3 {
			t.Errorf("%d releases", n)
		}
		mustUnlock(t, lease)
		if n := s.count("release"); n != 4 {
			t.Errorf("%d releases after the second call", n)
		}
		mustUnlock(t, mustLockAll(t, l, []string{"a", "b", "c"}))
	})
}

func TestAllLeaseUntilIsTheEarliest(t *testing.T) {
	steps(t, func(t *testing.T, _ *store, l locker.Locker) {
		b := mustLock(t, l, "b")
		time.AfterFunc(ttl/2, func() { _ = b.Unlock(context.Background()) })
		start := time.Now()
		lease, err := locker.LockAll(t.Context(), plain{l}, []string{"a", "b"}, locker.TTL(ttl), locker.NoRenewal())
		if err != nil {
			t.Fatal(err)
		}
		if until := lease.Until(); until.After(start.Add(ttl)) {
			t.Errorf("Until is %v after a was acquired, with a TTL of %v", until.Sub(start), ttl)
		}
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		if until := lease.Until(); until.Before(start.Add(ttl)) {
			t.Errorf("after Extend, Until is %v after a was acquired", until.Sub(start))
		}
		mustUnlock(t, lease)
	})
}

func TestVerifyAsksAboutAllLocks(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		c := locker.NewClient(b)
		lease := mustLockAll(t, c, []string{"a", "b"})
		if err := locker.Verify(t.Context(), lease); err != nil {
			t.Error(err)
		}
		if _, err := c.ForceRelease(t.Context(), "b", ""); err != nil {
			t.Fatal(err)
		}
		err := locker.Verify(t.Context(), lease)
		wantErr(t, err, locker.ErrLost)
		wantKey(t, err, "b")
		_ = lease.Unlock(t.Context())
		_ = c.Close()
	})
}

// The goroutines that watch the locks end with the lease.
func TestAllLeaseLeavesNoGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b"})
		done := lease.Done()
		synctest.Wait()
		mustUnlock(t, lease)
		<-done
	})
}

// A lock that was not held any more is no lock that a second call finds released, whatever that call does to the
// others.
func TestSecondUnlockOfSeveralLocksRemembersALoss(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b"})
		s.steal(t, one{key: "a", token: s.tokens[0]}, time.Minute)
		s.on("release", func(_ context.Context, next func() error) error {
			if err := next(); err != nil {
				return err
			}
			return locker.ErrUnavailable
		})
		wantErr(t, lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost, locker.ErrUnavailable)
		s.on("release", func(context.Context, func() error) error { return nil })
		err := lease.Unlock(t.Context()) // releases b
		wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
		wantKey(t, err, "a")
		wantErr(t, lease.Unlock(t.Context()), locker.ErrNotHeld, locker.ErrLost)
	})
}

// parted is a Locker whose leases are changed by a middleware.
type parted struct {
	locker.Locker
	change func(l locker.Lease) locker.Lease
}

func (p parted) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := p.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return p.change(l), nil
}

func (p parted) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l, err := p.Locker.TryLock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return p.change(l), nil
}

// slowUnlock is a Lease whose Unlock returns some time after the store's answer, as with a middleware that logs it.
type slowUnlock struct {
	locker.Lease
	by time.Duration
}

func (s slowUnlock) Unlock(ctx context.Context) error {
	err := s.Lease.Unlock(ctx)
	if !errors.Is(err, locker.ErrUnlocked) {
		time.Sleep(s.by)
	}
	return err
}

// Of two calls of Unlock at the same time, none hides a loss that the other finds out.
func TestUnlockTwiceAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		slow := func(l locker.Lease) locker.Lease { return slowUnlock{l, 10 * time.Millisecond} }
		lease := mustLockAll(t, parted{c, slow}, []string{"a", "b", "c"})
		s.steal(t, one{key: "b", token: s.tokens[1]}, time.Minute)
		errs := make(chan error)
		for i := range 2 {
			go func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				errs <- lease.Unlock(t.Context())
			}()
		}
		for range 2 {
			wantErr(t, <-errs, locker.ErrNotHeld, locker.ErrLost)
		}
		mustUnlock(t, mustLockAll(t, c, []string{"a", "c"}))
	})
}

// A call of Unlock waits for another one, but not for longer than for the store.
func TestUnlockWaitsASecondForAnother(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		slow := func(l locker.Lease) locker.Lease { return slowUnlock{l, 3 * time.Second} }
		lease := mustLockAll(t, parted{c, slow}, []string{"a", "b"})
		first := make(chan error)
		go func() { first <- lease.Unlock(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable)
		if took := time.Since(start); took != time.Second {
			t.Errorf("it took %v", took)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnlocked)
	})
}

// Who has released a lock behind the back of its AllLease, and with which outcome, is not known.
func TestUnlockOfALockThatMiddlewareHasReleased(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		var parts []locker.Lease
		lease := mustLockAll(t, parted{c, func(l locker.Lease) locker.Lease {
			parts = append(parts, l)
			return l
		}}, []string{"a", "b"})
		mustUnlock(t, parts[0])
		err := lease.Unlock(t.Context())
		wantErr(t, err, locker.ErrUnavailable)
		wantKey(t, err, "a")
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnlocked)
	})
}

// A caller who calls Unlock again while the outcome is unknown comes to an end, also if the outcome stays unknown.
func TestUnlockOfSeveralLocksUntilTheOutcomeIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, c *locker.Client) {
		lease := mustLockAll(t, c, []string{"a", "b", "c"})
		s.on("release", func(_ context.Context, next func() error) error {
			_ = next()
			return locker.ErrUnavailable
		})
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable) // executed, and not answered
		s.on("release", nil)
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable) // the store has no such lock any more
		for range 2 {
			wantErr(t, lease.Unlock(t.Context()), locker.ErrUnlocked)
		}

		// What stays unknown of one lock is reported until the outcome for the others is known.
		lease = mustLockAll(t, c, []string{"a", "b"})
		silent := func(_ context.Context, next func() error) error {
			_ = next()
			return locker.ErrUnavailable
		}
		s.on("release", silent)
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable)
		var releases atomic.Int64
		s.on("release", func(ctx context.Context, next func() error) error {
			if releases.Add(1) == 1 {
				return silent(ctx, next)
			}
			return next()
		})
		for range 2 {
			wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable)
		}
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnlocked)
	})
}

// slowAbout is a store whose answers about one key take a while.
type slowAbout struct {
	*memory.Backend
	key string
	by  time.Duration
}

func (s slowAbout) answer(key string, err error) error {
	if key == s.key {
		time.Sleep(s.by)
	}
	return err
}

func (s slowAbout) Extend(ctx context.Context, req backend.Request) error {
	return s.answer(req.Key, s.Backend.Extend(ctx, req))
}

func (s slowAbout) Verify(ctx context.Context, req backend.Request) error {
	return s.answer(req.Key, s.Backend.Verify(ctx, req))
}

// The lease has not ended when Verify or Extend return nil.
func TestRequestOfAnAllLeaseThatEndsMeanwhile(t *testing.T) {
	for what, request := range map[string]func(context.Context, locker.Lease) error{
		"Verify": locker.Verify,
		"Extend": func(ctx context.Context, l locker.Lease) error { return l.Extend(ctx) },
	} {
		t.Run(what, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				c := locker.NewClient(slowAbout{memory.NewBackend(), "b", ttl})
				lease := mustLockAll(t, c, []string{"a", "b"}, locker.TTL(10*ttl), locker.NoRenewal())
				asked := make(chan error)
				go func() { asked <- request(t.Context(), lease) }()
				synctest.Wait() // the store has answered for a
				if _, err := c.ForceRelease(t.Context(), "a", ""); err != nil {
					t.Fatal(err)
				}
				wantErr(t, lease.Extend(t.Context()), locker.ErrLost) // notices the loss
				err := <-asked
				wantErr(t, err, locker.ErrLost)
				_ = lease.Unlock(t.Context())
				_ = c.Close()
			})
		})
	}
}

// Calls for many locks leave room for others while the store answers, and do not wait for each other when it hangs.
func TestManyLocksAreAskedForInTurn(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const n, most = 5000, 1024
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		s := newStore()
		c := locker.NewClient(stepping{s})
		var now, peak atomic.Int64
		for _, op := range []string{"extend", "release"} {
			s.on(op, func(_ context.Context, next func() error) error {
				defer now.Add(-1)
				if running := now.Add(1); running > peak.Load() {
					peak.Store(running)
				}
				time.Sleep(10 * time.Millisecond)
				return next()
			})
		}
		lease := mustLockAll(t, c, keys, locker.NoRenewal())
		extend := func(ctx context.Context) error { return lease.Extend(ctx) }
		for _, f := range []func(context.Context) error{extend, lease.Unlock} {
			peak.Store(0)
			if err := f(t.Context()); err != nil {
				t.Fatal(err)
			}
			if p := peak.Load(); p != most {
				t.Errorf("%d requests at once, want %d", p, most)
			}
		}
		lease = mustLockAll(t, c, keys, locker.NoRenewal())
		s.on("release", hang)
		start := time.Now()
		wantErr(t, lease.Unlock(t.Context()), locker.ErrUnavailable)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Unlock took %v while the store hung", took)
		}
		_ = c.Close()
	})
}

// asking is a Lease that runs code of the program when it is asked.
type asking struct {
	locker.Lease
	asked func()
}

func (a asking) Err() error            { a.asked(); return a.Lease.Err() }
func (a asking) Done() <-chan struct{} { a.asked(); return a.Lease.Done() }
func (a asking) Until() time.Time      { a.asked(); return a.Lease.Until() }
func (a asking) Key() string           { a.asked(); return a.Lease.Key() }
func (a asking) Unlock(ctx context.Context) error {
	a.asked()
	return a.Lease.Unlock(ctx)
}

// An AllLease runs code of the program while others may use it, also when that code asks the AllLease itself.
func TestAllLeaseAsksItsPartsWithoutItsMutex(t *testing.T) {
	c := memory.New()
	defer c.Close()
	var lease *locker.AllLease
	var inside atomic.Bool
	ask := func() {
		if lease == nil || inside.Swap(true) {
			return
		}
		defer inside.Store(false)
		_, _, _, _ = lease.Err(), lease.Until(), lease.Keys(), lease.FenceOf("a")
		_ = lease.Done()
	}
	lease = mustLockAll(t, parted{c, func(l locker.Lease) locker.Lease { return asking{l, ask} }}, []string{"a", "b"})
	ended := make(chan error)
	go func() {
		_, _ = lease.Err(), lease.Until()
		_ = lease.Done()
		_ = locker.Verify(t.Context(), lease)
		ended <- lease.Unlock(t.Context())
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for itself")
	}
}

// counted counts the questions to the leases of a Locker whether they have ended.
type counted struct {
	locker.Lease
	asked *int
}

func (c counted) Err() error           { *c.asked++; return c.Lease.Err() }
func (c counted) Unwrap() locker.Lease { return c.Lease }

// Err of ten thousand locks is called in each loop of the work under them, by its context.
func TestErrOfAnAllLeaseAsksNoLockEachTime(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		const n, times = 100, 1000
		var keys []string
		for i := range n {
			keys = append(keys, fmt.Sprint(i))
		}
		s := newStore()
		c := locker.NewClient(stepping{s})
		asked := 0
		lease := mustLockAll(t, parted{c, func(l locker.Lease) locker.Lease { return counted{l, &asked} }}, keys,
			locker.TTL(ttl))
		held, cancel := locker.WithLease(t.Context(), lease)
		defer cancel()
		asked = 0
		for range times {
			if lease.Err() != nil || held.Err() != nil {
				t.Fatal(lease.Err())
			}
			time.Sleep(ttl / times)
		}
		if asked > 3*n { // the end that was known is over once or twice
			t.Errorf("%d questions to %d locks in %d calls", asked, n, 2*times)
		}

		s.on("extend", unavailable)
		time.Sleep(ttl)
		wantErr(t, lease.Err(), locker.ErrLost)
		wantErr(t, held.Err(), context.Canceled)
		_ = lease.Unlock(t.Context())
		_ = c.Close()
	})
}

// However a lock ends, the next question of the same goroutine learns of it.
func TestErrOfAnAllLeaseLearnsOfEachEnd(t *testing.T) {
	for what, end := range map[string]func(t *testing.T, c *locker.Client, part locker.Lease){
		"unlocked": func(t *testing.T, _ *locker.Client, part locker.Lease) { mustUnlock(t, part) },
		"closed":   func(_ *testing.T, c *locker.Client, _ locker.Lease) { _ = c.Close() },
		"over":     func(t *testing.T, _ *locker.Client, _ locker.Lease) { locker.SleepMachine(t)(ttl) },
		"gone": func(t *testing.T, c *locker.Client, part locker.Lease) {
			if _, err := c.ForceRelease(t.Context(), part.Key(), ""); err != nil {
				t.Fatal(err)
			}
			wantErr(t, locker.Verify(t.Context(), part), locker.ErrLost)
		},
	} {
		for name, wrap := range map[string]func(l locker.Lease) locker.Lease{
			"":                  func(l locker.Lease) locker.Lease { return l },
			", behind a lease":  func(l locker.Lease) locker.Lease { return counted{l, new(int)} },
			", behind a Permit": func(l locker.Lease) locker.Lease { return struct{ locker.Lease }{l} },
		} {
			t.Run(what+name, func(t *testing.T) {
				virtual.Test(t, func(t *testing.T) {
					c := locker.NewClient(memory.NewBackend())
					var parts []locker.Lease
					for _, key := range []string{"a", "b", "c"} {
						parts = append(parts, mustLock(t, c, key, locker.TTL(ttl)))
					}
					lease := locker.NewAllLease(wrap(parts[0]), wrap(parts[1]), wrap(parts[2]))
					if err := lease.Err(); err != nil {
						t.Error(err)
					}
					end(t, c, parts[1])
					if lease.Err() == nil {
						t.Error("the lease goes on")
					}
					_ = c.Close()
				})
			})
		}
	}
}

// stopping is a Lease that ends when its middleware says so.
type stopping struct {
	locker.Lease
	done chan struct{}
}

func (s stopping) Done() <-chan struct{} { return s.done }
func (s stopping) Unwrap() locker.Lease  { return s.Lease }
func (s stopping) Err() error {
	if isDone(s) {
		return locker.ErrUnlocked
	}
	return s.Lease.Err()
}

func TestErrOfAnAllLeaseAsksMiddlewareThatEndsALease(t *testing.T) {
	bubble(t, func(t *testing.T, _ *store, c *locker.Client) {
		part := stopping{mustLock(t, c, "a"), make(chan struct{})}
		lease := locker.NewAllLease(part, mustLock(t, c, "b"))
		if err := lease.Err(); err != nil {
			t.Error(err)
		}
		close(part.done)
		wantErr(t, lease.Err(), locker.ErrUnlocked)
	})
}
