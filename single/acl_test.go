package single_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredisclient "github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
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
	for _, driver := range drivers.Names() {
		client := func() *locker.Client {
			d, err := drivers.Open(t.Context(), driver, drivers.Config{
				Network: "tcp", Addr: s.Addr(), Username: "locker", Password: "password",
			})
			if err != nil {
				t.Fatal(err)
			}
			return closing(t, single.New(d))
		}
		a, b := client(), client()
		for _, key := range []string{"k", "a{tag}b", "a}b"} {
			handOver(t, s, a, b, key)
		}
	}
	if log, ok := s.Cmd(t, "ACL", "LOG").([]any); !ok || len(log) > 0 {
		t.Errorf("the server refused something: %v", log)
	}
}

// On a cluster, the user of the documentation needs the rights to sharded channels, and those of the client.
func TestUserOfTheDocumentationOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, false)
	if !c.Masters[0].Knows(t, "ssubscribe") {
		return // before Redis 7
	}
	for _, s := range c.Masters {
		s.DocumentedUser(t, "+spublish", "+ssubscribe", "+sunsubscribe", "+cluster", "+command")
		s.Cmd(t, "ACL", "SETUSER", "locker", "-publish", "-subscribe", "-unsubscribe")
	}
	for name, open := range map[string]func() drivers.Driver{
		"goredis": func() drivers.Driver {
			client := goredisclient.NewClusterClient(&goredisclient.ClusterOptions{
				Addrs: c.Addrs(), Username: "locker", Password: "password", ContextTimeoutEnabled: true, DisableIdentity: true,
			})
			t.Cleanup(func() { _ = client.Close() })
			return goredisdriver.New(client)
		},
		"rueidis": func() drivers.Driver {
			client, err := rueidisclient.NewClient(rueidisclient.ClientOption{
				InitAddress: c.Addrs(), Username: "locker", Password: "password", DisableCache: true,
				ClientSetInfo: rueidisclient.DisableClientSetInfo,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			return rueidisdriver.New(client)
		},
	} {
		a, b := closing(t, single.New(open())), closing(t, single.New(open()))
		for _, key := range []string{"k", "a{tag}b", "a}b"} {
			t.Log(name, key)
			handOver(t, c.Owner(t, c.Slot(t, single.DefaultPrefix+key)), a, b, key)
		}
		for _, s := range c.Masters {
			if log, ok := s.Cmd(t, "ACL", "LOG").([]any); !ok || len(log) > 0 {
				t.Errorf("%s: the server refused something: %v", name, log)
			}
		}
	}
}

// The user of the documentation needs one more right.
func TestGuardOfTheUserOfTheDocumentation(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.DocumentedUser(t, "+info")
	d, err := drivers.Open(t.Context(), "rueidis", drivers.Config{
		Network: "tcp", Addr: s.Addr(), Username: "locker", Password: "password",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := closing(t, single.New(d, single.Guard(30*time.Second)))
	if _, err := c.TryLock(t.Context(), "a{tag}b"); !errors.As(err, new(*locker.GracePeriodError)) {
		t.Error(err)
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
