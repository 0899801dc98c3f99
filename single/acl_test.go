package single_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// The user that docs/redis.md recommends may do all that locks need, for every kind of key, and waiters are told. There
// is one rule for servers that know rights on channels, and one for those that do not.
func TestUserOfTheDocumentation(t *testing.T) {
	s := redistest.Start(t)
	s.DocumentedUser(t)
	client := func(driver string) *locker.Client {
		d, err := drivers.Open(t.Context(), driver, drivers.Config{
			Network: "tcp", Addr: s.Addr(), Username: "locker", Password: "password",
		})
		if err != nil {
			t.Fatal(err)
		}
		return closing(t, single.New(d))
	}
	for _, driver := range drivers.Names() {
		a, b := client(driver), client(driver)
		for _, key := range []string{"k", "a{tag}b", "a}b"} {
			handOver(t, s, a, b, key)
			steady.Unlock(t, passesOn(t, a, b, key))
		}
	}
	if log, ok := s.Cmd(t, "ACL", "LOG").([]any); !ok || len(log) > 0 {
		t.Errorf("the server refused something: %v", log)
	}
	s.DocumentedUser(t, "+scan", "+info")
	for _, err := range client(drivers.Names()[0]).List(t.Context(), "") {
		t.Errorf("List: expected nothing, seen a lock or the error %v", err)
	}
}

// handOver lets b wait for a lock of a, and wants it to be told. A look that is due just then may come before the
// message: another one will not.
func handOver(t *testing.T, s *redistest.Server, a, b *locker.Client, key string) {
	t.Helper()
	const want = lockertrace.WakeHandover
	var last lockertrace.WakeReason
	for tries := 5; tries > 0 && last != want; tries-- {
		last = wokenBy(t, s, a, b, key)
	}
	if last != want {
		t.Errorf("key %q: the waiter was woken by %q, want %q", key, last, want)
	}
}

// wokenBy lets b wait for a lock of a, and returns what woke it last.
func wokenBy(t *testing.T, s *redistest.Server, a, b *locker.Client, key string) (last lockertrace.WakeReason) {
	t.Helper()
	told := func() bool {
		for _, k := range s.Keys(t, "*:lockwait*") {
			if strings.Contains(fmt.Sprint(s.Cmd(t, "HVALS", k)), "inbox") {
				return true
			}
		}
		return false
	}
	held, err := a.Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Extend(t.Context()); err != nil {
		t.Error(err)
	}
	result := waitWoken(b, key)
	eventually(t, 30*time.Second, "the waiter can be told", told)
	steady.Unlock(t, held)
	return result(t)
}

// waitWoken begins to wait for a lock, which is released at once when it was acquired. result waits for that, and
// returns what woke the waiter last.
func waitWoken(c *locker.Client, key string) (result func(t *testing.T) lockertrace.WakeReason) {
	var last lockertrace.WakeReason
	done := make(chan error, 1)
	go func() {
		ctx := lockertrace.With(context.Background(),
			&lockertrace.Trace{Woken: func(w lockertrace.Wake) { last = w.Reason }})
		l, err := c.Lock(ctx, key)
		if err == nil {
			err = steady.Release(l)
		}
		done <- err
	}()
	return func(t *testing.T) lockertrace.WakeReason {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return last
	}
}

// A user without rights to any channel waits nevertheless. TestForbiddenCommands has users who may not publish or
// subscribe.
func TestChannelsRefusedByACL(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		if !s.ChannelRights(t) {
			return
		}
		s.User(t, "default", "on", "nopass", "~*", "+@all", "resetchannels")
		holder, waiter := closing(t, single.New(build(t, s.Addr()))), closing(t, single.New(build(t, s.Addr())))
		promptly(t, untoldPoll, func() time.Duration { // they know that they cannot be told
			lease := mustTry(t, holder)
			result := lockLater(t, waiter)
			looking(t, s)
			released := time.Now()
			steady.Unlock(t, lease)
			return take(t, result).Sub(released)
		})
		nothingLeft(t, s)
	})
}
