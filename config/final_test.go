package config_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
)

// No state of a Client is final. Its server closes the connections, is down, has no room for them, and does not know
// the user or the password, or gives the user no rights. Whatever the Client has seen meanwhile, it works when that is
// over, and so does its subscription.
func TestNoStateIsFinal(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers.Names() {
		if driver[0] == 'x' { // of other tests of this package
			continue
		}
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			server.User(t, "locker", "on", ">password", "~*", "+@all")
			file := filepath.Join(t.TempDir(), "password")
			password := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
			password("password")
			admin := func() redigo.Conn { // a connection of its own, for a server that accepts no other
				conn, err := redigo.Dial("unix", server.Socket())
				require.NoError(t, err)
				return conn
			}
			url := "redis+" + driver + "://locker@" + server.Addr() + "?timeout=1s&password_file=" + file
			s := &contenders{t: t, server: server, holder: open(t, url), waiter: open(t, url)}
			closeAll := func() {
				server.Cmd(t, "CLIENT", "KILL", "TYPE", "normal")
				server.Cmd(t, "CLIENT", "KILL", "TYPE", "pubsub")
			}
			setUser := func(rules ...any) func() {
				return func() { server.Cmd(t, append([]any{"ACL", "SETUSER", "locker"}, rules...)...) }
			}
			var last redigo.Conn
			for _, step := range []struct {
				what           string
				inject, repair func()
				fails          bool
				refusal        string // in each error; empty: it depends
			}{
				{"closed connections", closeAll, func() {}, false, ""},
				{"a server that is down", server.Kill, func() {
					server.Restart()
					server.User(t, "locker", "on", ">password", "~*", "+@all")
				}, true, ""},
				{"too many clients", func() {
					last = admin()
					_, err := last.Do("CONFIG", "SET", "maxclients", 1)
					require.NoError(t, err)
					_, err = last.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
					require.NoError(t, err)
					_, err = last.Do("CLIENT", "KILL", "TYPE", "pubsub")
					require.NoError(t, err)
				}, func() {
					_, err := last.Do("CONFIG", "SET", "maxclients", 1000)
					require.NoError(t, err)
					require.NoError(t, last.Close())
				}, true, ""},
				{"a user that is deleted", func() { server.Cmd(t, "ACL", "DELUSER", "locker") },
					func() { server.User(t, "locker", "on", ">password", "~*", "+@all") }, true, "WRONGPASS"},
				{"a user that is off", func() { setUser("off")(); closeAll() }, setUser("on"), true, "WRONGPASS"},
				{"another password", func() { setUser("resetpass", ">another")(); closeAll() },
					func() { password("another") }, true, "WRONGPASS"},
				{"no rights", setUser("-@all", "resetkeys"), setUser("+@all", "~*"), true, "NOPERM"},
				{"no rights for new connections", func() { setUser("-@all", "resetkeys")(); closeAll() },
					setUser("+@all", "~*"), true, "NOPERM"},
			} {
				s.outage(step.what, step.inject, step.repair, step.fails, step.refusal)
			}
		})
	}
}

// contenders are two Clients of a server.
type contenders struct {
	t              *testing.T
	server         *redistest.Server
	holder, waiter locker.Locker
}

// outage has a waiter and a holder while the server does not let them in. A waiter must get the next lock afterwards.
func (s *contenders) outage(what string, inject, repair func(), fails bool, refusal string) {
	s.t.Helper()
	s.t.Log(what)
	lease, got := s.contend(what)
	inject()
	refused := func() bool {
		_, err := s.holder.TryLock(s.t.Context(), "another", locker.TTL(time.Second))
		if err != nil {
			require.NotErrorIs(s.t, err, locker.ErrHeld, what)
		}
		return err != nil && strings.Contains(err.Error(), refusal)
	}
	for n := 0; fails && n < 5; n++ { // by each connection that there may be
		require.Eventually(s.t, refused, 30*time.Second, time.Millisecond, "%s: no refusal", what)
	}
	repair()
	_ = lease.Unlock(s.t.Context())
	s.settle(what, <-got)
	lease, got = s.contend(what + ", which are over")
	require.NoError(s.t, lease.Unlock(s.t.Context()), what)
	err := <-got
	require.NoError(s.t, err, what)
}

// settle accepts a lock, and that the store was unavailable.
func (s *contenders) settle(what string, err error) {
	if err != nil && !errors.Is(err, locker.ErrUnavailable) {
		s.t.Errorf("%s: the waiter: %v", what, err)
	}
}

// contend returns when one Client has a lock, and the other one waits for it with a subscription.
func (s *contenders) contend(what string) (lease locker.Lease, got <-chan error) {
	s.t.Helper()
	within := func(why string, cond func() bool) {
		s.t.Helper()
		require.Eventually(s.t, cond, 30*time.Second, 5*time.Millisecond, "%s: %s", what, why)
	}
	within("no lock", func() (ok bool) {
		var err error
		lease, err = s.holder.TryLock(s.t.Context(), "k", locker.TTL(time.Minute))
		return err == nil
	})
	// A request may meet a connection that was begun while the server let nobody in. That the server has let the holder
	// in says nothing of the waiter's connections.
	for range 5 {
		within("the waiter is not let in", func() bool {
			other, err := s.waiter.TryLock(s.t.Context(), "of the waiter", locker.TTL(time.Minute))
			return err == nil && other.Unlock(s.t.Context()) == nil
		})
	}
	result := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
		defer cancel()
		lease, err := s.waiter.Lock(ctx, "k")
		if err == nil {
			err = lease.Unlock(ctx)
		}
		result <- err
	}()
	within("no subscription", func() bool {
		list, err := s.server.Do("CLIENT", "LIST", "TYPE", "pubsub")
		return err == nil && fmt.Sprint(list) != ""
	})
	return lease, result
}
