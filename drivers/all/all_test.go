// Package all_test checks that all registered drivers support the fields of drivers.Config. A conformance suite with
// one address cannot check that.
package all_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestRegistersAll(t *testing.T) {
	assert.Subset(t, drivers.Names(), []string{"goredis", "redigo", "rueidis"})
}

// each runs f with every driver.
func each(t *testing.T, f func(t *testing.T, open func(cfg drivers.Config) drivers.Driver)) {
	for _, name := range drivers.Names() {
		t.Run(name, func(t *testing.T) {
			f(t, func(cfg drivers.Config) drivers.Driver {
				d, err := drivers.Open(t.Context(), name, cfg)
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, d.Close()) })
				return d
			})
		})
	}
}

func do(t *testing.T, d drivers.Driver, cmds ...drivers.Command) []drivers.Reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	replies, err := d.Do(ctx, cmds...)
	require.NoError(t, err)
	require.Len(t, replies, len(cmds))
	return replies
}

func TestUnixSocket(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "pw")
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{Network: "unix", Addr: server.Socket(), Password: "pw"})
		assert.Equal(t, "PONG", do(t, d, drivers.Command{"PING"})[0])
	})
}

func TestTLS(t *testing.T) {
	server, config := redistest.StartTLS(t)
	_, port, err := net.SplitHostPort(server.Addr())
	require.NoError(t, err)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		for _, addr := range []string{server.Addr(), "localhost:" + port} {
			d := open(drivers.Config{Network: "tcp", Addr: addr, TLS: config})
			assert.Equal(t, "PONG", do(t, d, drivers.Command{"PING"})[0])
		}
		assert.Empty(t, config.ServerName, "the configuration is the caller's")

		stranger := open(drivers.Config{Network: "tcp", Addr: server.Addr(), TLS: &tls.Config{}})
		_, err := stranger.Do(t.Context(), drivers.Command{"PING"})
		require.ErrorIs(t, err, drivers.ErrNotSent)
		require.ErrorContains(t, err, "certificate")

		misnamed := config.Clone()
		misnamed.ServerName = "elsewhere.example"
		_, err = open(drivers.Config{Network: "tcp", Addr: server.Addr(), TLS: misnamed}).Do(t.Context(),
			drivers.Command{"PING"})
		require.ErrorIs(t, err, drivers.ErrNotSent)

		plain := open(drivers.Config{Network: "tcp", Addr: server.Addr(), Timeout: time.Second})
		_, err = plain.Do(t.Context(), drivers.Command{"PING"})
		require.Error(t, err, "a TLS server does not understand Redis")
	})
}

func TestCredentials(t *testing.T) {
	locked := redistest.Start(t, "--requirepass", "pw", "--user", "locker", "on", ">secret", "~lock:*", "+@all")
	plain := redistest.Start(t)
	for _, c := range []struct {
		name               string
		server             *redistest.Server
		username, password string
		refused            string
	}{
		{"Right", locked, "", "pw", ""},
		{"RightUser", locked, "locker", "secret", ""},
		{"DefaultUser", locked, "default", "pw", ""},
		{"Wrong", locked, "", "no", "WRONGPASS"},
		{"WrongUser", locked, "nobody", "secret", "WRONGPASS"},
		{"Missing", locked, "", "", "NOAUTH"},
		{"UserWithoutPassword", locked, "locker", "", "NOAUTH"},
		// So that passwords can be given to clients first.
		{"Unwanted", plain, "", "pw", ""},
		{"UnwantedForTheDefaultUser", plain, "default", "pw", ""},
		{"UnknownUser", plain, "nobody", "pw", "WRONGPASS"},
		{"UserWithoutPasswordWhereNobodyNeedsOne", plain, "nobody", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
				d := open(drivers.Config{Network: "tcp", Addr: c.server.Addr(), Username: c.username,
					Password: c.password})
				for _, cmds := range [][]drivers.Command{{{"GET", "lock:a"}}, {{"GET", "lock:a"}, {"GET", "lock:b"}}} {
					for _, reply := range do(t, d, cmds...) {
						if c.refused == "" {
							assert.Nil(t, reply)
						} else if assert.IsType(t, drivers.ServerError(""), reply) {
							assert.Equal(t, c.refused, reply.(drivers.ServerError).Code())
						}
					}
				}
				if c.username == "locker" && c.password != "" {
					assert.Equal(t, "NOPERM", do(t, d, drivers.Command{"GET", "other"})[0].(drivers.ServerError).Code())
				}
			})
		})
	}
}

// oldServer is a server with a password, but without users and HELLO, like Redis before version 6 and some proxies. It
// answers the commands of a handshake and PING.
func oldServer(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close()
		in := bufio.NewReader(conn)
		for {
			var words, size int
			if _, err := fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
				return
			}
			request := make([]string, words)
			for i := range request {
				if _, err := fmt.Fscanf(in, "$%d\r\n%s\r\n", &size, &request[i]); err != nil {
					return
				}
			}
			answer, known := map[string]string{
				"AUTH pw": "+OK", "SELECT 3": "+OK", "PING": "+PONG",
				"AUTH default pw": "-ERR wrong number of arguments for 'auth' command",
			}[strings.Join(append([]string{strings.ToUpper(request[0])}, request[1:]...), " ")]
			if !known {
				answer = "-ERR unknown command '" + request[0] + "'"
			}
			if _, err := io.WriteString(conn, answer+"\r\n"); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return l.Addr().String()
}

func TestPasswordOfAServerWithoutUsers(t *testing.T) {
	addr := oldServer(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{Network: "tcp", Addr: addr, Password: "pw", DB: 3})
		assert.Equal(t, "PONG", do(t, d, drivers.Command{"PING"})[0])
	})
}

func TestDB(t *testing.T) {
	server := redistest.Start(t)
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{Network: "tcp", Addr: server.Addr(), DB: 3})
		key := "db:" + t.Name()
		do(t, d, drivers.Command{"SET", key, "v"})
		assert.Empty(t, server.Keys(t, key), "database 0 is empty")

		none := open(drivers.Config{Network: "tcp", Addr: server.Addr(), DB: 16})
		for _, reply := range do(t, none, drivers.Command{"PING"}, drivers.Command{"PING"}) {
			assert.Equal(t, drivers.ServerError("ERR DB index is out of range"), reply)
		}
	})
}

// Timeout bounds a call whose context has no deadline.
func TestTimeout(t *testing.T) {
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		server := redistest.Start(t)
		d := open(drivers.Config{Network: "tcp", Addr: server.Addr(), Timeout: 200 * time.Millisecond})
		ready := func() bool { // also on a machine that stalls for longer than the time-out
			_, err := d.Do(context.Background(), drivers.Command{"PING"})
			return err == nil
		}
		var start time.Time
		var err error
		for range 20 {
			require.Eventually(t, ready, 10*time.Second, 10*time.Millisecond)
			server.Pause()
			start = time.Now()
			_, err = d.Do(context.Background(), drivers.Command{"INCR", "n"})
			require.Error(t, err, "a connection that fell silent")
			if !errors.Is(err, drivers.ErrNotSent) {
				break
			}
			server.Resume() // the time was up before it could be sent
		}
		assert.NotErrorIs(t, err, drivers.ErrNotSent)
		_, err = d.Do(context.Background(), drivers.Command{"PING"})
		require.Error(t, err, "a handshake that nobody answers")
		assert.Less(t, time.Since(start), 10*time.Second)
		server.Resume()
		require.Eventually(t, ready, 10*time.Second, 10*time.Millisecond)
		require.Eventually(t, func() bool { return server.Cmd(t, "GET", "n") != nil }, 10*time.Second,
			10*time.Millisecond)
		require.True(t, ready(),
			"what was sent before has been executed, on every connection: a second time there must not be")
		assert.Equal(t, "1", server.Cmd(t, "GET", "n"), "what was sent to a frozen server happens later, and once")
	})
}

// A driver sends the caller's commands and its handshake. The server must not refuse any of the latter, because
// refusals show up in monitoring.
func TestServerSeesNoErrors(t *testing.T) {
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		server := redistest.Start(t, "--requirepass", "pw")
		d := open(drivers.Config{Network: "tcp", Addr: server.Addr(), Password: "pw", DB: 1})
		do(t, d, drivers.Command{"PING"})
		do(t, d, drivers.Command{"PING"}, drivers.Command{"PING"})
		stats := server.Cmd(t, "INFO", "everything").(string)
		assert.NotContains(t, stats, "errorstat_")
		for line := range strings.Lines(stats) {
			if strings.HasPrefix(line, "cmdstat_") {
				t.Log(strings.TrimSpace(line))
			}
		}
	})
}

// The server is restarted. The conformance suite only cuts connections.
func TestRestart(t *testing.T) {
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		server := redistest.Start(t)
		d := open(drivers.Config{Network: "tcp", Addr: server.Addr()})
		do(t, d, drivers.Command{"SET", "k", "v"})
		server.Kill()
		require.Eventually(t, func() bool {
			_, err := d.Do(t.Context(), drivers.Command{"PING"})
			require.Error(t, err)
			return errors.Is(err, drivers.ErrNotSent)
		}, 10*time.Second, time.Millisecond, "a dead server is one that nothing can be sent to")
		server.Restart()
		assert.Nil(t, do(t, d, drivers.Command{"GET", "k"})[0])
	})
}

// A server that is a replica by mistake is left, too, but not with every call, and all callers learn what it is. The
// client go-redis itself makes a new connection after each reply READONLY.
func TestReplicaByMistake(t *testing.T) {
	t.Parallel()
	replica := redistest.StartReplica(t, redistest.Start(t))
	received := func() (n int) {
		_, after, _ := strings.Cut(replica.Cmd(t, "INFO", "stats").(string), "total_connections_received:")
		_, err := fmt.Sscan(after, &n)
		require.NoError(t, err)
		return n
	}
	each(t, func(t *testing.T, open func(drivers.Config) drivers.Driver) {
		d := open(drivers.Config{Network: "tcp", Addr: replica.Addr()})
		before, start := received(), time.Now()
		for range 300 {
			refusal, _ := do(t, d, drivers.Command{"SET", "k", "v"})[0].(drivers.ServerError)
			require.Equal(t, "READONLY", refusal.Code())
		}
		most := 3 + int(time.Since(start)/(500*time.Millisecond)) // one of them asks for their number
		if made := received() - before; !strings.HasSuffix(t.Name(), "/goredis") {
			assert.LessOrEqual(t, made, most)
		}
	})
}
