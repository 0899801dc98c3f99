package nats_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/nats"
)

// Of waiters that miss no message, each release makes one try, and that is the one that has waited longest. At first
// all have counted the same, and chance decides.
func TestTheLongestWaiterTriesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const programs, releases, step = 8, 200, time.Millisecond
		random := rand.New(rand.NewPCG(1, 2))
		tries := make(chan *nats.Turn, programs)
		var line []*nats.Turn // in the order of their arrival
		join := func() {
			var waiter *nats.Turn
			waiter = nats.NewTurn(func() { tries <- waiter }, step)
			line = append(line, waiter)
		}
		tell := func(taken bool, front int64) {
			for _, i := range random.Perm(len(line)) {
				line[i].Told(taken, front)
			}
		}
		for range programs - 1 {
			join()
		}
		front := int64(0)
		for n := range releases {
			tell(false, front)
			winner := <-tries
			<-time.After(step / 2)
			vain := len(tries)
			for range vain {
				<-tries
			}
			if n > 5*programs && (winner != line[0] || vain > 0) {
				t.Errorf("release %d: waiter %d got the lock, and %d others tried", n, slices.Index(line, winner), vain)
			}
			front = winner.Waited()
			line = slices.DeleteFunc(line, func(w *nats.Turn) bool { return w == winner })
			tell(true, 0)
			join() // the last holder
		}
	})
}

// If those have gone who may have waited longer, a waiter tries after a bounded time. It does not try if it learns that
// the lock is taken.
func TestAWaiterDoesNotWaitForOthersForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, tries := time.Now(), make(chan time.Time, 10)
		for _, step := range []time.Duration{time.Nanosecond, time.Millisecond, time.Hour} {
			w := nats.NewTurn(func() { tries <- time.Now() }, step)
			w.Told(false, 1<<62)
			w.Told(true, 0)
			<-time.After(time.Hour)
			if len(tries) > 0 {
				t.Fatalf("step %v: a try for a lock that is taken, after %v", step, (<-tries).Sub(start))
			}
			start = time.Now()
			w.Told(false, 1<<62)
			if took := (<-tries).Sub(start); took > nats.MaxDelay {
				t.Errorf("step %v: a try after %v", step, took)
			}
		}
	})
}

// waiter waits for a lock.
type waiter struct {
	wakes atomic.Int32
	stop  func()
}

// Each release tells how many holders its owner has waited for. A waiter that has counted fewer is not woken if another
// one takes the lock. The owner that has released it looks before it tries again.
func TestProgramsTakeTurns(t *testing.T) {
	t.Parallel()
	s, ctx := start(t), t.Context()
	until := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !holds(); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	acquire := func(b *nats.Backend, token string) (release func()) {
		t.Helper()
		req := request("k", token)
		grant, err := b.Acquire(ctx, req)
		if err != nil {
			t.Fatalf("%s: %v", token, err)
		}
		req.Fence, req.Private = grant.Fence, grant.Private
		return func() {
			t.Helper()
			if err := b.Release(ctx, req); err != nil {
				t.Fatalf("%s: %v", token, err)
			}
		}
	}
	wait := func(b *nats.Backend) *waiter {
		t.Helper()
		w := new(waiter)
		_, w.stop = b.Notify("k", func() { w.wakes.Add(1) })
		until("a subscription", func() bool { return w.wakes.Load() > 0 })
		return w
	}
	for try := 0; ; try++ { // until this process is not stopped for longer than the delay of a waiter
		open := func(js jetstream.JetStream) *nats.Backend {
			b := nats.NewBackend(js)
			t.Cleanup(func() { _ = b.Close() })
			return b
		}
		firstJS := s.connect(t)
		first, second, third := open(firstJS), open(s.connect(t)), open(s.connect(t))
		third.SetPace(time.Hour)

		release := acquire(second, "second")
		a := wait(first)
		release()
		until("news of the release", func() bool { return a.wakes.Load() > 1 })
		release = acquire(first, "first")
		a.stop()
		b := wait(second)
		release() // by an owner that has waited for one holder, as b has
		until("news of the release", func() bool { return b.wakes.Load() > 1 })
		b.stop()
		between := acquire(third, "third")
		sent := firstJS.Conn().Stats().OutMsgs
		if _, err := first.Acquire(ctx, request("k", "again")); !errors.Is(err, locker.ErrHeld) {
			t.Fatalf("the lock is held, and Acquire says %v", err)
		}
		if n := firstJS.Conn().Stats().OutMsgs - sent; n != 1 {
			t.Errorf("an owner for whose release others have waited sends %d messages to find that the lock is taken", n)
		}
		a = wait(first)
		between()
		until("news of the release", func() bool { return a.wakes.Load() > 1 })
		release = acquire(second, "second")
		until("news of the next owner", func() bool { return first.Waited("k") == 2 })
		release()
		until("news of the release", func() bool { return a.wakes.Load() > 2 })
		release = acquire(first, "first") // has waited for two holders
		a.stop()
		c := wait(third)
		before := c.wakes.Load()
		release()
		release = acquire(second, "second")
		until("news of the next owner", func() bool { return third.Waited("k") == 2 })
		woken := c.wakes.Load() > before
		c.stop()
		release()
		if !woken {
			return
		}
		if try == 20 {
			t.Fatal("a waiter that has waited for fewer holders than the last owner does not let others go first")
		}
	}
}
