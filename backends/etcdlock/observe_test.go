package etcdlock_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

// blind is a Backend whose looks see something new only after Watch has told of something. So an observer that sees a
// change was told of it.
type blind struct {
	*etcdlock.Backend
	told atomic.Bool
	seen inspect.Inspection // by the last look; an observer makes one at a time
}

func (b *blind) Watch(key string, changed func()) (stop func(), err error) {
	return b.Backend.Watch(key, func() {
		b.told.Store(true)
		changed()
	})
}

func (b *blind) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	told := b.told.Swap(false)
	seen, err := b.Backend.Inspect(ctx, key)
	switch {
	case told && err == nil:
		b.seen = seen
	case told:
		b.told.Store(true) // this is still to be seen
	}
	return b.seen, err
}

// observer is a reader of Observe.
type observer struct {
	t    *testing.T
	seen chan election.Leader
	errs chan error // has a value after an error
}

// observes begins to observe the key k. The observer ends with the test.
func observes(t *testing.T, s *store) *observer {
	t.Helper()
	l := locker.NewClient(&blind{Backend: s.open()})
	ctx, cancel := context.WithCancel(context.Background())
	o := &observer{t: t, seen: make(chan election.Leader), errs: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for leader, err := range election.Observe(ctx, l, "k") {
			if err != nil {
				select {
				case o.errs <- err:
				default:
				}
				continue
			}
			select {
			case o.seen <- leader:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		s.must(l.Close())
	})
	return o
}

// sees waits until the observer sees that a term is led, or that nobody leads (0).
func (o *observer) sees(what string, term uint64) {
	o.t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case leader := <-o.seen:
			if leader.Term == term {
				return
			}
		case <-limit:
			o.t.Fatalf("%s: the observer does not see term %d within a minute", what, term)
		}
	}
}

// tellsObservers changes the owner in all ways.
func tellsObservers(t *testing.T, s *store) {
	l, o := s.client(), observes(t, s)
	o.sees("at the beginning", 0)
	first := lock(t, l, "k")
	o.sees("a free lock is acquired", first.Fence())
	waits := s.queue("k", time.Minute, 2)
	unlock(t, first)
	g := <-waits.done
	o.sees("the lock is handed over", g.Fence)
	_, err := l.ForceRelease(t.Context(), "k", "")
	s.must(err)
	o.sees("the lock is taken away", 0)
	kept := lock(t, l, "k", locker.MinHold(time.Hour))
	o.sees("the lock is acquired again", kept.Fence())
	unlock(t, kept)
	o.sees("the lock is released, and kept", 0)
	s.delete("k")
	short := lock(t, l, "k", locker.TTL(time.Second), locker.NoRenewal())
	o.sees("the lock is acquired for a second", short.Fence())
	o.sees("the lock has expired", 0)
}

// tellsAfterLoss changes the owner while the observer has no connection, and compacts what it has missed. The member is
// another one, because a compaction ends watches of the other tests, too.
func tellsAfterLoss(t *testing.T, _ *store) {
	s := newStore(t, etcdtest.Start(t))
	up := s.relay.Down()
	o := observes(t, s)
	if err := <-o.errs; !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("without a server: expected ErrUnavailable, seen %v", err)
	}
	l := etcdlock.New(s.direct, etcdlock.Prefix(s.prefix))
	t.Cleanup(func() { s.must(l.Close()) })
	for _, when := range []string{"after a beginning without a server", "after a lost connection"} {
		unlock(t, lock(t, l, "k"))
		lease := lock(t, l, "k", locker.TTL(time.Hour))
		now, err := s.direct.Get(t.Context(), "k")
		s.must(err)
		_, err = s.direct.Compact(t.Context(), now.Header.Revision)
		s.must(err)
		up()
		o.sees(when, lease.Fence())
		up = s.relay.Down()
		unlock(t, lease)
	}
	up()
	o.sees("after another lost connection", 0)
	s.member.Restart()
	var last locker.Lease
	until(t, "the restarted server grants a lock", func() (ok bool) {
		var err error
		last, err = l.TryLock(t.Context(), "k")
		return err == nil
	})
	o.sees("after a restart of the server", last.Fence())
}

// A Backend has two goroutines for all its watches, until it is closed. Other tests that have any are not running.
func TestGoroutinesOfWatches(t *testing.T) {
	s := newStore(t, etcdtest.Start(t))
	b := s.open()
	begun := make(chan struct{}, 50)
	for range 50 {
		stop, err := b.Watch("k", func() { begun <- struct{}{} })
		s.must(err)
		defer stop()
	}
	for range 50 {
		<-begun
	}
	if n := watching(); n != 2 {
		t.Errorf("50 watches: expected 2 goroutines, seen %d", n)
	}
	s.must(b.Close())
	if n := watching(); n != 0 {
		t.Errorf("after Close: expected no goroutine of watches, seen %d", n)
	}
}

// watching counts the goroutines of watches.
func watching() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for _, stack := range bytes.Split(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("etcdlock.(*watches)")) {
			n++
		}
	}
	return n
}
