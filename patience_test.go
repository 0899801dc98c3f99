package locker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
)

// pausing is a store with a queue. The process stops when it is handed the lock for the first time.
type pausing struct {
	*store
	stop time.Duration
}

func (p *pausing) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	g, err := p.Backend.(backend.Queuer).Queue(ctx, req, wait)
	time.Sleep(p.stop)
	p.stop = 0
	return g, err
}

// A call has waited for longer than its patience, and is then granted the lock too late. That is one fault, which began
// when the lock was granted, and the call waits on.
func TestPatienceBeginsWithTheFaultAndNotWithTheWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newStore()
		c := locker.NewClient(&pausing{s, ttl})
		held := mustLock(t, c, "k")
		time.AfterFunc(2*locker.DefaultPatience, func() { mustUnlock(t, held) })
		l, err := c.Lock(t.Context(), "k", locker.TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, l)
		_ = c.Close()
	})
}

// failing is a store with a queue, which answers that the lock is held or, while down is true, fails.
type failing struct {
	*store
	down atomic.Bool
}

func (f *failing) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	for w := wait; ; {
		asked := time.Now()
		if !f.down.Load() {
			w.Held(&locker.HeldError{})
		} else if _, err := w.Failed(ctx, asked, locker.ErrUnavailable); err != nil {
			return backend.Grant{}, err
		}
		if _, err := w.Sleep(ctx, 10*time.Millisecond, nil); err != nil {
			return backend.Grant{}, err
		}
	}
}

// Only the caller at the front asks the store. A caller behind it has patience of its own, which counts from when the
// store begins to fail, or from its call.
func TestEachCallerHasPatienceOfItsOwn(t *testing.T) {
	for _, queues := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			f := &failing{store: newStore()}
			b := backend.Backend(f)
			if !queues {
				b = f.store
			}
			fails := func(down bool) {
				f.down.Store(down)
				f.on("acquire", nil)
				if down {
					f.on("acquire", unavailable)
				}
			}
			c := locker.NewClient(b)
			if _, err := f.Backend.Acquire(t.Context(), backend.Request{Key: "k", Token: "other", TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
			front := asks(t.Context(), c, "k", locker.Patience(30*time.Minute))
			behind := map[time.Duration]<-chan granted{}
			for _, patience := range []time.Duration{0, 3 * time.Second, time.Minute} {
				behind[patience] = asks(t.Context(), c, "k", locker.Patience(patience))
			}
			// check waits until calls whose patience is that long or shorter have ended, and no others.
			check := func(when string, d, ended time.Duration) {
				t.Helper()
				time.Sleep(d)
				for patience, got := range behind {
					switch over := len(got) > 0; {
					case over != (patience <= ended):
						t.Fatalf("queues %v, %s: with a patience of %v, the call is over: %v", queues, when, patience, over)
					case over:
						wantErr(t, (<-got).err, locker.ErrUnavailable)
						delete(behind, patience)
					}
				}
			}
			check("the store answers", 10*time.Second, -1)
			fails(true)
			check("it fails", time.Second, 0) // polls of one that waits for long are up to a second apart
			fails(false)
			check("it answers again", 10*time.Second, 0)
			fails(true)
			check("it fails for less than the patience", 2900*time.Millisecond, 0)
			check("it fails for 3 s, and a poll", 1100*time.Millisecond, 3*time.Second)
			late := asks(t.Context(), c, "k", locker.Patience(3*time.Second))
			behind[4*time.Second] = late // as it came 4 s after the first failure
			check("the last one has waited for less than its patience", 2900*time.Millisecond, 3*time.Second)
			check("the last one has waited for 3 s", 200*time.Millisecond, 4*time.Second)
			check("it fails for less than a minute", 50*time.Second, 4*time.Second)
			check("it fails for a minute", 5*time.Second, time.Minute)
			if len(front) > 0 {
				t.Error("the caller at the front has lost its patience")
			}
			_ = c.Close()
			wantErr(t, (<-front).err, locker.ErrClosed)
		})
	}
}

// A store that rests says for how long. LockAll does not wait longer than its patience all the same.
func TestPatienceOfLockAllWithAStoreThatRests(t *testing.T) {
	const patience, long = 30 * time.Second, 20 * time.Second
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		held := mustLock(t, locker.NewClient(s.Backend), "b", locker.TTL(20*time.Minute), locker.NoRenewal())
		var begun time.Time
		rests := func(context.Context, func() error) error { return &locker.GracePeriodError{Remaining: time.Hour} }
		time.AfterFunc(ttl, func() {
			begun = time.Now()
			s.on("acquire", rests)
			s.on("acquire many", rests)
			s.on("extend", rests)
		})
		_, err := locker.LockAll(t.Context(), l, []string{"a", "b"}, locker.TTL(long), locker.Patience(patience))
		took := time.Since(begun)
		s.on("acquire", nil)
		s.on("acquire many", nil)
		s.on("extend", nil)
		_ = held.Unlock(context.Background())
		wantErr(t, err, locker.ErrUnavailable)
		if took < patience || took > patience+2*time.Second {
			t.Errorf("it returned %v after the store was down, want %v", took, patience)
		}
	})
}

// LockAll has begun anew in an outage. Then the store answers that a lock is held. A fault after that is another one.
func TestPatienceOfLockAllBeginsAnewWithAnAnswer(t *testing.T) {
	const patience, long = 30 * time.Second, 20 * time.Second
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		other := locker.NewClient(s.Backend)
		heldB := mustLock(t, other, "b", locker.TTL(20*time.Minute), locker.NoRenewal())
		down := func(d time.Duration) {
			for _, op := range []string{"acquire", "acquire many", "extend"} {
				s.on(op, unavailable)
			}
			time.Sleep(d)
			for _, op := range []string{"acquire", "acquire many", "extend"} {
				s.on(op, nil)
			}
		}
		go func() {
			time.Sleep(time.Second)
			go func() { // takes a as soon as it is free
				a, err := other.Lock(context.Background(), "a", locker.TTL(20*time.Minute), locker.NoRenewal())
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Minute)
				_ = a.Unlock(context.Background())
			}()
			down(25 * time.Second)
			time.Sleep(30 * time.Second)
			down(time.Second)
			_ = heldB.Unlock(context.Background())
		}()
		start := time.Now()
		lease, err := locker.LockAll(t.Context(), l, []string{"a", "b"}, locker.TTL(long), locker.Patience(patience))
		if err != nil {
			t.Errorf("%v after %v", err, time.Since(start))
			time.Sleep(5 * time.Minute)
			return
		}
		mustUnlock(t, lease)
	})
}
