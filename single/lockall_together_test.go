package single_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// free checks that none of keys is locked, or soon is not: what failed is undone in the background.
func free(t *testing.T, s *redistest.Server, keys ...string) {
	t.Helper()
	for _, key := range keys {
		eventually(t, 30*time.Second, "the lock "+key+" is free", func() bool {
			return s.Cmd(t, "EXISTS", single.DefaultPrefix+key) == int64(0)
		})
	}
}

// about checks that err is about key.
func about(t *testing.T, err error, key string) {
	t.Helper()
	if e := (*locker.Error)(nil); !errors.As(err, &e) || e.Key != key {
		t.Errorf("%v, want an error about %q", err, key)
	}
}

// Several locks count when enough replicas have confirmed all of them. If too few do, none is left.
func TestLockAllWithReplicas(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		master, replica, p := replicated(t)
		c := withReplicas(t, build(t, p.Addr()), 1)
		lease := lockAll(t, c, "a", "b")
		for _, key := range lease.Keys() {
			if replica.Cmd(t, "EXISTS", "lock:"+key) != int64(1) {
				t.Errorf("the replica does not have the lock %s", key)
			}
		}
		if err := lease.Extend(t.Context(), locker.TTL(time.Hour)); err != nil {
			t.Fatal(err)
		}
		for _, key := range lease.Keys() {
			if left := replica.PTTL(t, "lock:"+key); left < 50*time.Minute {
				t.Errorf("the replica has the lock %s for another %v", key, left)
			}
		}
		until := lease.Until()
		replica.Pause()
		err := lease.Extend(t.Context(), locker.TTL(2*time.Hour))
		if !errors.Is(err, locker.ErrNotReplicated) {
			t.Errorf("Extend without a replica: %v", err)
		}
		if !lease.Until().Equal(until) {
			t.Errorf("an extension that no replica has confirmed counts: %v", lease.Until().Sub(until))
		}
		_, err = locker.TryLockAll(t.Context(), c, []string{"c", "d"}, locker.TTL(ttl))
		notReplicated(t, err, 0, 1)
		replica.Resume()
		free(t, master, "c", "d")
		_ = lease.Unlock(t.Context())
	})
}

// A server that rests grants none of several locks, and says for how long. With a guard, no TTL may be above it.
func TestLockAllWithAGuard(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s, ttl := redistest.Start(t), locker.TTL(guarded)
		c := closing(t, single.New(build(t, s.Addr()), single.Guard(guarded)))
		resting(t, s)
		for _, call := range []func(
			context.Context, locker.Locker, []string, ...locker.Option,
		) (*locker.AllLease, error){locker.TryLockAll, locker.LockAll} {
			_, err := call(t.Context(), c, []string{"a", "b"}, ttl)
			restOf(t, err)
			about(t, err, "a")
		}
		free(t, s, "a", "b")
		opts := []single.Option{single.Prefix("longer:"), single.Guard(time.Minute)}
		bootstrap(t, build(t, s.Addr()), opts...)
		c = closing(t, single.New(build(t, s.Addr()), opts...))
		_, err := locker.TryLockAll(t.Context(), c, []string{"a", "b"}, locker.TTL(time.Minute+1))
		wantErr(t, err, locker.ErrInvalid)
		lease := lockAll(t, c, "a", "b")
		if err := lease.Extend(t.Context(), locker.TTL(61*time.Second)); !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("Extend above the guard: %v", err)
		}
		if err := lease.Extend(t.Context(), locker.TTL(time.Minute)); err != nil {
			t.Error(err)
		}
		_ = lease.Unlock(t.Context())
	})
}

// The user of the documentation acquires several locks in one step. Without the right to one of the keys or commands,
// nothing is acquired, and the error says which key, or that locker doctor names the command.
func TestLockAllByRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, name := range drivers.Names() {
		open := func() *locker.Client {
			d, err := drivers.Open(t.Context(), name, drivers.Config{
				Network: "tcp", Addr: s.Addr(), Username: "locker", Password: "password",
			})
			if err != nil {
				t.Fatal(err)
			}
			return closing(t, single.New(d))
		}
		s.DocumentedUser(t)
		l := open()
		eventually(t, 30*time.Second, name+": one call of a script for two locks", func() bool {
			before := roundTrips(t, s)
			lease := lockAll(t, l, name+"a", name+"b")
			n := roundTrips(t, s) - before
			_ = lease.Unlock(t.Context())
			return n == 1
		})
		for _, right := range []string{"mget", "mset"} {
			s.Cmd(t, "ACL", "SETUSER", "locker", "-"+right)
			keys := []string{name + right + "a", name + right + "b"}
			_, err := locker.TryLockAll(t.Context(), open(), keys)
			wantErr(t, err, locker.ErrUnavailable)
			if err != nil && !strings.Contains(err.Error(), "locker doctor") {
				t.Errorf("%s without %s: %v", name, right, err)
			}
			free(t, s, keys...)
			s.DocumentedUser(t)
		}
		s.Cmd(t, "ACL", "SETUSER", "locker", "resetkeys", "~lock:mine*", "~{lock:mine*", "~{*}}lock:*")
		_, err := locker.TryLockAll(t.Context(), open(), []string{"mine" + name, "theirs"})
		wantErr(t, err, locker.ErrUnavailable)
		about(t, err, "theirs")
		free(t, s, "mine"+name, "theirs")
		s.Cmd(t, "ACL", "DELUSER", "locker")
	}
}
