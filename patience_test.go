package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
)

// pausing is a store with a queue. The process stops when it is handed the lock for the first time.
type pausing struct {
	*store
	stop time.Duration
}

func (p *pausing) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	g, err := p.Backend.(locker.Queuer).Queue(ctx, req)
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

// A store that rests says for how long. LockAll does not wait longer than its patience all the same.
func TestPatienceOfLockAllWithAStoreThatRests(t *testing.T) {
	const patience, long = 30 * time.Second, 20 * time.Second
	steps(t, func(t *testing.T, s *store, l locker.Locker) {
		held := mustLock(t, locker.NewClient(s.Backend), "b", locker.TTL(20*time.Minute), locker.NoRenewal())
		var begun time.Time
		rests := func(context.Context, func() error) error { return &locker.RestingError{Remaining: time.Hour} }
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
