package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	oldredislock "github.com/bsm/redislock"
	oldredsync "github.com/go-redsync/redsync/v4"
	oldpools "github.com/go-redsync/redsync/v4/redis"
	oldgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/redislock"
	"github.com/golocker/locker/compat/redsync"
	"github.com/golocker/locker/compat/redsync/redis"
	"github.com/golocker/locker/compat/redsync/redis/goredis/v9"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// mover is a program before or after its imports have changed. try returns how to release the lock, or nil if it is
// taken.
type mover struct {
	name string
	try  func(t *testing.T) (release func())
	lock func(ctx context.Context) (release func(), err error) // waits
}

const movedKey = "orders:42"

// movers are the same programs before and after: with bsm/redislock, and with go-redsync on as many servers.
func movers(t *testing.T, servers []*redistest.Server) (before, after []mover) {
	var olds []oldpools.Pool
	var news []redis.Pool
	for _, s := range servers {
		c := newGoredis(s.Addr(), limits{8, longTimeout})
		t.Cleanup(func() { _ = c.Close() })
		olds, news = append(olds, oldgoredis.NewPool(c)), append(news, goredis.NewPool(c))
	}
	oldrs, rs := oldredsync.New(olds...), redsync.New(news...)
	t.Cleanup(func() { _ = rs.Locker().Close() })
	oldmutex := func(tries int) *oldredsync.Mutex {
		return oldrs.NewMutex(movedKey, oldredsync.WithExpiry(time.Hour), oldredsync.WithTries(tries),
			oldredsync.WithRetryDelay(5*time.Millisecond))
	}
	mutex := func(tries int) *redsync.Mutex {
		return rs.NewMutex(movedKey, redsync.WithExpiry(time.Hour), redsync.WithTries(tries),
			redsync.WithRetryDelay(5*time.Millisecond))
	}
	before = append(before, mover{"go-redsync", func(t *testing.T) func() {
		m := oldmutex(1)
		if err := m.Lock(); err != nil {
			if !errors.As(err, new(*oldredsync.ErrTaken)) {
				t.Errorf("go-redsync: %v", err)
			}
			return nil
		}
		return func() { unlocked(t, m.Unlock) }
	}, func(ctx context.Context) (func(), error) {
		m := oldmutex(1 << 30)
		return func() { unlocked(t, m.Unlock) }, m.LockContext(ctx)
	}})
	after = append(after, mover{"redsync", func(t *testing.T) func() {
		m := mutex(1)
		if err := m.Lock(); err != nil {
			if !errors.As(err, new(*redsync.ErrTaken)) {
				t.Errorf("redsync: %v", err)
			}
			return nil
		}
		return func() { unlocked(t, m.Unlock) }
	}, func(ctx context.Context) (func(), error) {
		m := mutex(1 << 30)
		return func() { unlocked(t, m.Unlock) }, m.LockContext(ctx)
	}})
	if len(servers) > 1 {
		return before, after
	}
	c := newGoredis(servers[0].Addr(), limits{16, longTimeout})
	t.Cleanup(func() { _ = c.Close() })
	l := redislock.New(c).Locker()
	t.Cleanup(func() { _ = l.Close() })
	before = append(before, mover{"bsm/redislock", func(t *testing.T) func() {
		l, err := oldredislock.Obtain(t.Context(), c, movedKey, time.Hour, nil)
		if err != nil {
			if err != oldredislock.ErrNotObtained {
				t.Errorf("bsm/redislock: %v", err)
			}
			return nil
		}
		return func() { released(t, l.Release) }
	}, func(ctx context.Context) (func(), error) {
		l, err := oldredislock.Obtain(ctx, c, movedKey, time.Hour,
			&oldredislock.Options{RetryStrategy: oldredislock.LinearBackoff(5 * time.Millisecond)})
		return func() { released(t, l.Release) }, err
	}})
	after = append(after, mover{"redislock", func(t *testing.T) func() {
		l, err := redislock.Obtain(t.Context(), c, movedKey, time.Hour, nil)
		if err != nil {
			if err != redislock.ErrNotObtained {
				t.Errorf("redislock: %v", err)
			}
			return nil
		}
		return func() { released(t, l.Release) }
	}, func(ctx context.Context) (func(), error) {
		l, err := redislock.Obtain(ctx, c, movedKey, time.Hour,
			&redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)})
		return func() { released(t, l.Release) }, err
	}})
	return before, after
}

func unlocked(t *testing.T, unlock func() (bool, error)) {
	t.Helper()
	if ok, err := unlock(); !ok {
		t.Errorf("Unlock: %v", err)
	}
}

func released(t *testing.T, release func(context.Context) error) {
	t.Helper()
	if err := release(context.Background()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// onServers runs f on one server and on three.
func onServers(t *testing.T, f func(t *testing.T, servers []*redistest.Server)) {
	for name, n := range map[string]int{"one server": 1, "three servers": 3} {
		t.Run(name, func(t *testing.T) {
			var servers []*redistest.Server
			for range n {
				servers = append(servers, redistest.Start(t))
			}
			f(t, servers)
		})
	}
}

// Programs that have changed their imports exclude those that have not, whichever comes first.
func TestMovedProgramsExcludeOthers(t *testing.T) {
	onServers(t, func(t *testing.T, servers []*redistest.Server) {
		before, after := movers(t, servers)
		all := slices.Concat(before, after)
		for _, holder := range all {
			release := holder.try(t)
			if release == nil {
				t.Fatalf("%s does not get the lock that is free", holder.name)
			}
			for _, other := range all {
				if other.try(t) != nil {
					t.Fatalf("%s gets the lock that %s has", other.name, holder.name)
				}
			}
			release()
		}
	})
}

// The counter-example: without the empty prefix, a program locks another key.
func TestAnotherPrefixDoesNotExclude(t *testing.T) {
	onServers(t, func(t *testing.T, servers []*redistest.Server) {
		before, after := movers(t, servers)
		c := newGoredis(servers[0].Addr(), limits{8, longTimeout})
		defer func() { _ = c.Close() }()
		apart, same := single.New(goredisdriver.New(c)), single.New(goredisdriver.New(c), single.Prefix(""))
		defer func() { _, _ = apart.Close(), same.Close() }()
		for _, holder := range append(before, after...) {
			release := holder.try(t)
			lease, err := apart.TryLock(t.Context(), movedKey)
			if err != nil {
				t.Fatalf("beside %s: %v", holder.name, err)
			}
			_ = lease.Unlock(t.Context())
			if _, err := same.TryLock(t.Context(), movedKey); !errors.Is(err, locker.ErrHeld) {
				t.Errorf("with an empty prefix, beside %s: %v", holder.name, err)
			}
			release()
		}
	})
}

// Programs of both kinds wait for the lock and have it for a while. Nobody has it beside another, and nobody starves.
func TestMovedProgramsTakeTurnsWithOthers(t *testing.T) {
	onServers(t, func(t *testing.T, servers []*redistest.Server) {
		before, after := movers(t, servers)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		const each = 10
		var inside atomic.Int64
		var wg sync.WaitGroup
		for _, m := range append(before, after...) {
			wg.Go(func() {
				for range each {
					release, err := m.lock(ctx)
					if err != nil {
						t.Errorf("%s: %v", m.name, err)
						return
					}
					if n := inside.Add(1); n != 1 {
						t.Errorf("%d have the lock, %s is one of them", n, m.name)
					}
					inside.Add(-1)
					release()
				}
			})
		}
		wg.Wait()
	})
}

// A value of go-redsync unlocks in a program that has moved, and not the other way round.
func TestValuesOfProgramsThatMove(t *testing.T) {
	onServers(t, func(t *testing.T, servers []*redistest.Server) {
		var olds []oldpools.Pool
		var news []redis.Pool
		for _, s := range servers {
			c := newGoredis(s.Addr(), limits{8, longTimeout})
			t.Cleanup(func() { _ = c.Close() })
			olds, news = append(olds, oldgoredis.NewPool(c)), append(news, goredis.NewPool(c))
		}
		oldrs, rs := oldredsync.New(olds...), redsync.New(news...)
		defer func() { _ = rs.Locker().Close() }()

		old := oldrs.NewMutex(movedKey, oldredsync.WithExpiry(time.Hour))
		if err := old.Lock(); err != nil {
			t.Fatal(err)
		}
		there := rs.NewMutex(movedKey, redsync.WithValue(old.Value()))
		if ok, err := there.Valid(); !ok {
			t.Errorf("Valid: %v", err)
		}
		unlocked(t, there.Unlock)

		m := rs.NewMutex(movedKey, redsync.WithExpiry(time.Hour))
		if err := m.Lock(); err != nil {
			t.Fatal(err)
		}
		if ok, _ := oldrs.NewMutex(movedKey, oldredsync.WithValue(m.Value())).Unlock(); ok {
			t.Error("go-redsync has unlocked by a value of this library")
		}
		unlocked(t, m.Unlock)
	})
}

// The habit that the documentation of compat/redislock warns of: a token of digits is what a value here begins with.
func TestTokenOfDigitsTakesTheLock(t *testing.T) {
	s := redistest.Start(t)
	c := newGoredis(s.Addr(), limits{8, longTimeout})
	defer func() { _ = c.Close() }()
	l := redislock.New(c)
	defer func() { _ = l.Locker().Close() }()
	if _, err := l.Obtain(t.Context(), movedKey, time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	take := func(token string) error {
		_, err := oldredislock.Obtain(t.Context(), c, movedKey, time.Hour, &oldredislock.Options{Token: token})
		return err
	}
	if err := take("worker-1"); err != oldredislock.ErrNotObtained {
		t.Errorf("another token: %v", err)
	}
	if err := take("1"); err != nil {
		t.Errorf("a token of one digit: %v. If it takes the lock no more, the documentation can say so", err)
	}
}
