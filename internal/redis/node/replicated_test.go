package node

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
)

func notReplicated(t testing.TB, err error) {
	t.Helper()
	var e *locker.NotReplicatedError
	if !errors.Is(err, locker.ErrNotReplicated) || !errors.Is(err, locker.ErrUnavailable) || !errors.As(err, &e) ||
		e.Got != 0 || e.Want != 1 {
		t.Fatalf("want a shortfall of 0 of 1, seen %v", err)
	}
}

// Whichever way a client gets a lock, replicas have confirmed it before it counts.
func TestEachWayToALockIsConfirmed(t *testing.T) {
	ways := map[string]func(x *testbed, r *replicas, open func() *client) (l *call, begins func()){
		"the lock is free": func(x *testbed, _ *replicas, open func() *client) (*call, func()) {
			return open().lock(), func() {}
		},
		"handed over": func(x *testbed, r *replicas, open func() *client) (*call, func()) {
			r.are(1, oneWay)
			lease := open().must()
			c := open().lock()
			return c, func() { x.unlock(lease) }
		},
		"handed over, and the message is lost": func(x *testbed, r *replicas, open func() *client) (*call, func()) {
			r.are(1, oneWay)
			lease := open().must()
			c := open().lock()
			x.messages(lost)
			return c, func() { x.unlock(lease) }
		},
		"the holder has died": func(x *testbed, r *replicas, open func() *client) (*call, func()) {
			r.are(1, oneWay)
			open().must(locker.TTL(time.Second), locker.NoRenewal())
			return open().lock(), func() {}
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
				const slow = replicasTimeout - 10*time.Millisecond
				r.are(1, slow)
				c, begins := way(x, r, open)
				r.are(1, slow)
				begun := time.Now()
				begins()
				l := c.gets(time.Minute)
				if c.at.Sub(begun) < slow-20*oneWay {
					x.Errorf("the lock counts after %v, and replicas take %v", c.at.Sub(begun), slow)
				}
				before := l.Until()
				if err := l.Extend(x.Context()); err != nil || !l.Until().After(before) {
					x.Errorf("extended from %v to %v: %v", before, l.Until(), err)
				}
				x.unlock(l)
				x.nothing()
			})
		})
	}
}

// While replicas are missing nobody gets the lock, and nothing is left of the attempts. A caller that finds the lock
// held is told so.
func TestShortfallIsUndone(t *testing.T) {
	onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
		a, b := open(), open()
		for _, have := range []int{1, 0} { // the second time the script's usual case has been found before
			r.are(have, oneWay)
			for _, p := range []*client{a, b} {
				start := time.Now()
				if l, err := p.TryLock(x.Context(), "k"); have == 1 {
					x.unlock(l)
				} else {
					notReplicated(x, err)
					if took := time.Since(start); took < replicasTimeout || took > replicasTimeout+10*oneWay {
						x.Errorf("it took %v", took)
					}
				}
				x.nothing()
				if fields := x.node.Fields("{p:k}:lockwait"); len(fields) > 0 {
					x.Errorf("%q are left of attempts that were executed for certain", fields)
				}
			}
		}
		_, err := a.Lock(x.Context(), "k")
		notReplicated(x, err)
		r.are(1, oneWay)
		l := a.must()
		r.are(0, 0)
		_, err = b.TryLock(x.Context(), "k")
		if !errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrUnavailable) {
			x.Errorf("of a lock that is held: %v", err)
		}
		x.unlock(l) // needs no replicas
		x.nothing()
	})
}

// A waiter that is handed the lock while replicas are missing keeps it for as long as it tolerates that. If they come
// back, the lock counts from then on. Otherwise the next waiter gets it.
func TestWaiterAndReplicas(t *testing.T) {
	onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
		lease := open().must()
		first := open().lock(locker.Patience(2 * time.Second))
		second := open().lock(locker.Patience(time.Minute), locker.TTL(10*time.Second))
		r.are(0, 0)
		x.unlock(lease)
		first.waits(1500 * time.Millisecond)
		select {
		case <-first.done:
			notReplicated(x, first.err)
		case <-time.After(5 * time.Second):
			x.Fatal("the first waiter is more patient than it should be")
		}
		second.waits(10 * time.Second)
		r.are(1, oneWay)
		back := time.Now()
		l := second.gets(2 * time.Second)
		if end := l.Until(); end.Before(back.Add(9 * time.Second)) {
			x.Errorf("the lease ends %v after replicas were back", end.Sub(back))
		}
		x.unlock(l)
		x.nothing()
	})
}

// An extension that replicas have not confirmed does not count: an old master that is cut off from them cannot keep a
// lease alive, although the lock is there for longer.
func TestExtensionNeedsReplicas(t *testing.T) {
	onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
		l := open().must(locker.TTL(3 * time.Second)) // renewed, too
		r.are(0, 0)
		end := l.Until()
		notReplicated(x, l.Extend(x.Context()))
		if l.Until() != end {
			x.Errorf("the end has moved by %v", l.Until().Sub(end))
		}
		select {
		case <-l.Done():
		case <-time.After(time.Minute):
			x.Fatal("the lease does not end")
		}
		var lost *locker.LostError
		if now := time.Now(); now.After(end) || !errors.As(l.Err(), &lost) || lost.Reason != locker.LostExpired {
			x.Errorf("it ends %v after its end: %v", now.Sub(end), l.Err())
		}
		if _, err := open().TryLock(x.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
			x.Errorf("the server has prolonged the lock: %v", err)
		}
	})
}

// A lease that misses one confirmation goes on with the next.
func TestExtensionIsRepeatedUntilReplicasAreBack(t *testing.T) {
	onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
		l := open().must(locker.TTL(3 * time.Second))
		end := l.Until()
		r.are(0, 0)
		time.Sleep(1500 * time.Millisecond)
		r.are(1, oneWay)
		time.Sleep(3 * time.Second)
		if err := l.Err(); err != nil || !l.Until().After(end) {
			x.Errorf("not extended: %v", err)
		}
		x.sound(l)
		x.unlock(l)
		x.nothing()
	})
}

// A caller that leaves while the server waits for replicas leaves nothing behind, whether they come or not.
func TestCallerLeavesWhileReplicasAreAwaited(t *testing.T) {
	for _, lag := range []time.Duration{replicasTimeout / 2, time.Hour} {
		onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
			r.are(1, lag)
			for key, p := range map[string]*client{"a": open(), "b": open()} {
				ctx, cancel := context.WithTimeout(x.Context(), 100*time.Millisecond)
				start := time.Now()
				if _, err := p.Lock(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
					x.Error(err)
				}
				if took := time.Since(start); took > 100*time.Millisecond {
					x.Errorf("it left after %v", took)
				}
				cancel()
				time.Sleep(time.Second)
				x.nothing()
				// One release is sent when the caller leaves, and one more when the server says that it had the lock.
				if n := p.sent("release") + p.sent("handover"); n < 2 {
					x.Errorf("%d releases were sent", n)
				}
			}
		})
	}
}

// Releases do not wait for commands that wait for replicas, however many these are.
func TestReleasesDoNotQueueBehindReplicas(t *testing.T) {
	onReplicated(t, func(x *testbed, r *replicas, open func() *client) {
		p := open()
		l := p.must()
		r.are(0, 0)
		var others sync.WaitGroup
		for i := range 100 {
			others.Go(func() { _, _ = p.TryLock(x.Context(), strconv.Itoa(i)) })
		}
		time.Sleep(oneWay / 2)
		synctest.Wait()
		start := time.Now()
		x.unlock(l)
		if took := time.Since(start); took != 2*oneWay {
			x.Errorf("the release took %v", took)
		}
		others.Wait()
		x.nothing()
	})
}
