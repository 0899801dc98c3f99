package rwlock_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/rwlock"
)

// Readers that share a request keep its place in the queue when others leave, also the one whose request it was: they
// come before a writer that came after it.
func TestReadersKeepTheirPlaceWhenOthersLeave(t *testing.T) {
	stores(t, func(w *world) {
		written := w.lock(w.process().Exclusive())
		rw, failed := w.process(), make(chan error)
		var leave []context.CancelFunc
		for range 2 {
			ctx, cancel := context.WithCancel(w.Context())
			leave = append(leave, cancel)
			go func() {
				_, err := rw.Shared().Lock(ctx, key)
				failed <- err
			}()
			time.Sleep(time.Millisecond)
		}
		stays := w.waiting(rw.Shared())
		writer := w.waiting(w.process().Exclusive())
		for _, cancel := range leave {
			cancel()
			if err := <-failed; !errors.Is(err, context.Canceled) || !errors.Is(err, locker.ErrHeld) {
				w.Error(err)
			}
		}
		time.Sleep(time.Second)
		w.Unlock(written)
		synctest.Wait()
		select {
		case lease := <-stays:
			w.Unlock(lease)
			w.Unlock(<-writer)
		case lease := <-writer:
			if w.Queues {
				w.Error("a writer that came later overtakes a reader")
			}
			w.Unlock(lease)
			w.Unlock(<-stays)
		}
		w.empty()
	})
}

// The request ends when the last of its callers leaves, whoever that is, and its error says why.
func TestRequestOfReadersThatHaveLeft(t *testing.T) {
	stores(t, func(w *world) {
		written := w.lock(w.process().Exclusive())
		for _, first := range []int{0, 1} { // of two, the first one to leave
			rw := w.process()
			maintenance := errors.New("maintenance")
			var leave [2]context.CancelCauseFunc
			var failed [2]chan error
			for i := range leave {
				var ctx context.Context
				ctx, leave[i] = context.WithCancelCause(w.Context())
				failed[i] = make(chan error)
				go func() {
					_, err := rw.Shared().Lock(ctx, key)
					failed[i] <- err
				}()
				time.Sleep(time.Second)
			}
			for _, i := range []int{first, 1 - first} {
				start := time.Now()
				leave[i](maintenance)
				err := <-failed[i]
				var of *locker.Error
				if !errors.As(err, &of) || of.Op != "lock" || of.Key != key || !errors.Is(err, context.Canceled) ||
					!errors.Is(err, maintenance) || !errors.Is(err, locker.ErrHeld) || time.Since(start) > 0 {
					w.Errorf("%v after %v", err, time.Since(start))
				}
			}
			w.Settle()
			w.Free(intent, gate)
		}
		w.Unlock(written)
		w.empty()
	})
}

// mute is a Locker whose leases cannot be extended.
type mute struct{ locker.Locker }

func (m mute) Unwrap() locker.Locker { return m.Locker }

type unextended struct{ wrapping }

func (unextended) Extend(context.Context, ...locker.Option) error { return locker.ErrUnavailable }

func (m mute) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := m.Locker.TryLock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return unextended{wrapping{lease}}, nil
}

// The store is asked once for all that come at that moment, and goes on to be asked if the one who began leaves. They
// share a slot only if it is still held when the answer comes, or when they have passed the gate instead.
func TestReadersAskTheStoreWhetherAWriterWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		mute   bool // the store does not answer
		begin  func(w *world, slot locker.Lease)
		shares bool
	}{
		"nobody waits": {shares: true},
		"the last reader leaves meanwhile": {begin: func(w *world, slot locker.Lease) {
			time.AfterFunc(5*time.Millisecond, func() { w.Unlock(slot) })
		}},
		"the slot is lost": {begin: func(w *world, _ locker.Lease) { w.lose() }},
		"the answer fails": {mute: true, shares: true},
	} {
		t.Run(name, func(t *testing.T) {
			stores(t, func(w *world) {
				if !w.Answers {
					return
				}
				l := locker.Defaults(locker.TTL(ttl))(w.Client())
				if tt.mute {
					l = mute{l}
				}
				rw := rwlock.New(l)
				first := w.lock(rw.Shared())
				time.Sleep(60 * time.Millisecond)
				w.Calls.Took()
				w.Calls.Delay(10 * time.Millisecond)
				if tt.begin != nil {
					tt.begin(w, first)
				}
				left := make(chan error)
				go func() {
					ctx, cancel := context.WithTimeout(w.Context(), 5*time.Millisecond)
					defer cancel()
					_, err := rw.Shared().Lock(ctx, key)
					left <- err
				}()
				time.Sleep(time.Millisecond)
				got := make(chan locker.Lease)
				for range 2 {
					go func() { got <- w.lock(rw.Shared()) }()
				}
				if err := <-left; !errors.Is(err, context.DeadlineExceeded) {
					w.Errorf("the reader that began: %v", err)
				}
				one, two := <-got, <-got
				w.Calls.Delay(0)
				calls := w.Calls.Took()
				if shares := one.Token() == first.Token(); shares != tt.shares || one.Token() != two.Token() {
					w.Errorf("shared: %v, and with each other: %v", shares, one.Token() == two.Token())
				}
				if calls["Extend"] > 1 || tt.shares && !tt.mute && calls["Acquire"]+calls["Queue"] > 0 {
					w.Errorf("the store was asked %v", calls)
				}
				if one.Err() != nil || two.Err() != nil {
					w.Errorf("they have %v, %v", one.Err(), two.Err())
				}
				w.Unlock(one, two)
				if err := first.Extend(w.Context()); tt.shares && !tt.mute && err != nil {
					w.Errorf("the slot after two of three have left: %v", err)
				}
				_ = first.Unlock(w.Context())
				w.empty()
			})
		})
	}
}

// hooked is a lease whose Err runs a hook of the program.
type hooked struct {
	wrapping
	hook func()
}

func (h hooked) Err() error {
	h.hook()
	return h.wrapping.Err()
}

// The context of a call may carry a lease, whose loss is found when the context is asked. A hook for that may unlock
// leases of the same RWLock.
func TestContextRunsHooksThatUnlock(t *testing.T) {
	stores(t, func(w *world) {
		for at := int64(1); at < 10; at++ { // which question to the context finds the loss
			c := w.Client()
			rw := rwlock.New(c)
			depends, carried := w.Lock(rw.Shared(), "depends"), w.Lock(c, "carried")
			var asked atomic.Int64
			ctx, cancel := locker.WithLease(w.Context(), hooked{wrapping{carried}, func() {
				if asked.Add(1) == at {
					_ = depends.Unlock(w.Context())
				}
			}})
			lease, err := rw.Shared().Lock(ctx, key)
			if err != nil {
				w.Fatal(err)
			}
			w.Unlock(lease)
			cancel()
			synctest.Wait()
			_ = depends.Unlock(w.Context()) // if there were fewer questions
			w.Unlock(carried)
		}
	})
}

// LockAll has waited for one of its locks, which it shares. So it tolerates for its patience that the store fails.
func TestLockAllOfReadersHasPatience(t *testing.T) {
	stores(t, func(w *world) {
		written := w.lock(w.process().Exclusive())
		rw := w.process()
		got := make(chan error)
		go func() {
			lease, err := locker.LockAll(w.Context(), rw.Shared(), []string{key, "z"})
			if err == nil {
				w.Unlock(lease)
			}
			got <- err
		}()
		time.Sleep(time.Second)
		w.Calls.Fail(locker.ErrUnavailable)
		w.Unlock(written)
		time.Sleep(time.Second)
		w.Calls.Fail(nil)
		w.Calls.Delay(0)
		if err := <-got; err != nil {
			w.Error(err)
		}
	})
}

// A hook ends the goroutine of a request, as FailNow of a test does. The calls fail.
func TestHookEndsTheGoroutine(t *testing.T) {
	stores(t, func(w *world) {
		ctx := lockertrace.With(w.Context(), &lockertrace.Trace{Attempted: func(lockertrace.Attempt) { runtime.Goexit() }})
		if lease, err := w.process().Shared().Lock(ctx, key); err == nil {
			w.Errorf("Lock returned %v", lease)
		}
	})
}

// What a Locker with MaxHold grants counts from its acquisition, so readers do not share it, although the first of them
// have shared the request: each has a slot of its own, which the release of another one leaves alone.
func TestReadersThatCameTogetherDoNotShareWithMaxHold(t *testing.T) {
	stores(t, func(w *world) {
		w.Calls.Delay(10 * time.Millisecond) // so that they come while the first request is under way
		rw := rwlock.New(locker.Defaults(locker.TTL(ttl), locker.MaxHold(time.Hour))(w.Client()))
		const readers = 3
		got := make(chan locker.Lease)
		for range readers {
			go func() { got <- w.lock(rw.Shared()) }()
		}
		tokens := make(map[string]bool)
		var leases []locker.Lease
		for range readers {
			lease := <-got
			leases = append(leases, lease)
			tokens[lease.Token()] = true
		}
		if len(tokens) != readers {
			w.Errorf("%d readers have %d owner values", readers, len(tokens))
		}
		w.Calls.Delay(0)
		for i, lease := range leases {
			w.refused(w.process().Exclusive())
			if err := lease.Err(); err != nil {
				w.Errorf("reader %d: %v", i, err)
			}
			w.Unlock(lease)
		}
		w.empty()
	})
}

// standing is a Locker of a process that stands still when it has got the gate, until it has lost it.
type standing struct {
	locker.Locker
	still func(l locker.Lease) // nil: it does not stand still
}

func (s *standing) Lock(ctx context.Context, name string, opts ...locker.Option) (locker.Lease, error) {
	l, err := s.Locker.Lock(ctx, name, opts...)
	if err == nil && name == gate && s.still != nil {
		s.still(l)
	}
	return l, err
}

// A reader has the gate, and may share the slot of another one. It stands still until it has lost the gate to a writer,
// which waits for that slot. The reader does not wait behind the writer then.
func TestReaderThatSharesDoesNotNeedTheGate(t *testing.T) {
	stores(t, func(w *world) {
		if w.Groups { // there is no gate
			return
		}
		s := &standing{Locker: locker.Defaults(locker.TTL(ttl))(w.Client())}
		rw := rwlock.New(s)
		first := w.lock(rw.Shared())
		ctx, leave := context.WithCancel(w.Context())
		left := make(chan error)
		go func() {
			_, err := w.process().Exclusive().Lock(ctx, key)
			left <- err
		}()
		time.Sleep(time.Second)
		second, writes := w.waiting(rw.Shared()), make(chan locker.Lease, 1)
		s.still = func(l locker.Lease) {
			s.still = nil
			if _, err := w.Calls.ForceRelease(w.Context(), gate, ""); err != nil {
				w.Error(err)
			}
			go func() { writes <- w.lock(w.process().Exclusive()) }()
			<-l.Done()
			time.Sleep(time.Second) // the writer has the gate
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
		select {
		case lease := <-second:
			w.Unlock(first, lease)
		case <-time.After(time.Minute):
			w.Fatal("a reader and a writer wait for each other")
		}
		w.Unlock(<-writes)
		w.empty()
	})
}
