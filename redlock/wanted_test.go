package redlock_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/internal/testing/wire"
)

// A waiter that has the turn to ask the nodes is not in the queue any more. If somebody else has the lock nevertheless,
// the holder learns that it is wanted.
func TestHolderLearnsOfAWaiterThatHasTheTurn(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, c cluster, first locker.Lease, other locker.Locker) locker.Lease{
		"another caller was faster": func(t *testing.T, c cluster, first locker.Lease, other locker.Locker) locker.Lease {
			steady.Unlock(t, first)
			eventually(t, time.Minute, "a waiter has the turn", func() bool { return c.with(t, "*:lockturn") != nil })
			var lease locker.Lease
			eventually(t, time.Minute, "a majority is free", func() bool {
				var err error
				lease, err = other.TryLock(t.Context(), "k", locker.TTL(longTTL))
				return err == nil
			})
			return lease
		},
		"the node has lost the lock and got it again": func(t *testing.T, c cluster, first locker.Lease,
			_ locker.Locker) locker.Lease {
			var lost *redistest.Server // one only: the others are a majority
			eventually(t, time.Minute, "a waiter has the turn", func() bool {
				if s := c.with(t, "*:lockqueue"); s != nil && (lost == nil || s == lost) {
					lost = s
					s.Cmd(t, "DEL", "lock:k")
				}
				return c.with(t, "*:lockturn") != nil
			})
			eventually(t, time.Minute, "all nodes have the lock", func() bool {
				if err := first.Extend(t.Context()); errors.Is(err, locker.ErrLost) {
					t.Fatal(err)
				}
				return !slices.ContainsFunc(c, func(s *redistest.Server) bool { return s.Cmd(t, "EXISTS", "lock:k") == int64(0) })
			})
			return first
		},
	}
	for name, overtake := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 3)
			var slow atomic.Bool // attempts of the waiter wait until it was overtaken
			overtaken := make(chan struct{})
			goOn := sync.OnceFunc(func() { close(overtaken) })
			w := c.tapped(t, "goredis", func(_ int, d drivers.Driver) drivers.Driver {
				held := tap{d, func(cmds []drivers.Command) {
					if slow.Load() && slices.ContainsFunc(cmds, func(cmd drivers.Command) bool { return isAcquire(cmd) }) {
						<-overtaken
					}
				}, nil}
				return struct {
					tap
					drivers.Subscriber
				}{held, d.(drivers.Subscriber)}
			})
			defer func() {
				goOn()
				if err := w.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}()
			first := c.lockAll(t, c.client(t, "goredis"), "k")
			got := make(chan locker.Lease, 1)
			go func() {
				lease, err := w.Lock(t.Context(), "k", locker.TTL(longTTL))
				if err != nil {
					t.Error(err)
				}
				got <- lease
			}()
			eventually(t, time.Minute, "the waiter is in the queue", func() bool { return c.with(t, "*:lockqueue") != nil })
			slow.Store(true)
			lease := overtake(t, c, first, c.client(t, "goredis"))
			wanted := locker.Wanted(lease)
			goOn()
			missed := 0 // extensions during which the waiter had the turn, and had marked the lock
			eventually(t, time.Minute, "the lease is wanted", func() bool {
				before := c.turnOfMarked(t)
				_ = lease.Extend(t.Context())
				select {
				case <-wanted:
					return true
				default:
				}
				if before != "" && before == c.turnOfMarked(t) {
					missed++
				}
				return missed > 10
			})
			if missed > 10 {
				t.Error("a waiter has the turn, and the lease is not wanted")
			}
			steady.Unlock(t, lease)
			if lease := <-got; lease != nil {
				steady.Unlock(t, lease)
			}
			c.wantNoLocks(t)
		})
	}
}

// turnOfMarked returns the ID of the client that has the turn on the server that keeps it, if the lock is marked there.
func (c cluster) turnOfMarked(t testing.TB) string {
	t.Helper()
	s := c.with(t, "*:lockturn")
	if s == nil {
		return ""
	}
	value, _ := s.Cmd(t, "GET", "lock:k").(string)
	turn, _ := s.Cmd(t, "GET", script.KeysOf("lock:", "k").Turn()).(string)
	if v, _ := wire.ParseValue(value); !v.Marked {
		return ""
	}
	return turn
}

// with returns a server that has such a key, or nil.
func (c cluster) with(t testing.TB, pattern string) *redistest.Server {
	t.Helper()
	i := slices.IndexFunc(c, func(s *redistest.Server) bool { return len(s.Keys(t, pattern)) > 0 })
	if i < 0 {
		return nil
	}
	return c[i]
}
