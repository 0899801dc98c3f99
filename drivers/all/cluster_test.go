package all_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

// clusterDrivers has the drivers of clients that support clusters, with the clients' defaults. The duration is how long
// the test waits for an answer that will not come. It is longer than the client's own time-out, or else short.
var clusterDrivers = map[string]func(t *testing.T, addrs []string) (d drivers.Driver, answer time.Duration){
	"goredis": func(t *testing.T, addrs []string) (drivers.Driver, time.Duration) {
		const own = 2 * time.Second // more than some machines stall for
		return goredisCluster(t, redis.ClusterOptions{Addrs: addrs, ReadTimeout: own}), 2 * own
	},
	"goredis, ContextTimeoutEnabled": func(t *testing.T, addrs []string) (drivers.Driver, time.Duration) {
		return goredisCluster(t, redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true}), time.Second
	},
	"rueidis": func(t *testing.T, addrs []string) (drivers.Driver, time.Duration) {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: addrs})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return rueidisdriver.New(c), time.Second
	},
	"goredis, from configuration": clusterByConfig("goredis"),
	"rueidis, from configuration": clusterByConfig("rueidis"),
}

func clusterByConfig(name string) func(*testing.T, []string) (drivers.Driver, time.Duration) {
	return func(t *testing.T, addrs []string) (drivers.Driver, time.Duration) {
		d, err := drivers.Open(t.Context(), name, drivers.Config{Cluster: addrs})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, d.Close()) })
		return d, time.Second
	}
}

func goredisCluster(t *testing.T, options redis.ClusterOptions) drivers.Driver {
	c := redis.NewClusterClient(&options)
	t.Cleanup(func() { _ = c.Close() })
	return goredisdriver.New(c)
}

// incr returns a script that increments the first key: its value tells how often it was executed.
func incr(keys ...string) drivers.Command {
	return append(drivers.Command{"EVAL", "return redis.call('INCR', KEYS[1])", strconv.Itoa(len(keys))}, keys...)
}

// get returns a script that reads the key.
func get(key string) drivers.Command {
	return drivers.Command{"EVAL", "return redis.call('GET', KEYS[1])", "1", key}
}

// In a cluster whose slots move, each command is executed once, or its outcome is reported as unknown. A redirection
// that the client has followed is not an answer.
func TestClusterRedirects(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	from, to := c.Masters[1], c.Masters[0]
	proxy := fault.New(t, to.Addr())
	c.Announce(t, to, proxy.Addr())
	key := keysOf(t, c, from)
	for name, open := range clusterDrivers {
		for size := range 2 {
			t.Run(fmt.Sprintf("%s, %d beside it", name, size), func(t *testing.T) {
				d, answer := open(t, c.Addrs())
				moving, beside := key(), key()
				batch := func(cmd drivers.Command) []drivers.Command {
					return append([]drivers.Command{cmd}, []drivers.Command{incr(beside)}[:size]...)
				}
				from.Cmd(t, "SET", moving, 0)
				assert.Equal(t, int64(1), do(t, d, batch(incr(moving))...)[0])

				m := c.Move(t, c.Slot(t, moving), to)
				require.True(t, m.Key())
				assert.Equal(t, int64(2), do(t, d, batch(incr(moving))...)[0], "ASK")
				refusal, _ := do(t, d, batch(incr(moving, moving+"none"))...)[0].(drivers.ServerError)
				assert.Equal(t, "TRYAGAIN", refusal.Code())

				proxy.Handle(fault.Nth(1, fault.DropReply, "ASKING"))
				var err error
				for limit := answer; limit < time.Minute; limit *= 2 {
					var replies []drivers.Reply
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					replies, err = d.Do(ctx, batch(incr(moving))...)
					cancel()
					require.Error(t, err, "it may have been executed, and the answer is %v", replies)
					if !errors.Is(err, drivers.ErrNotSent) { // else a stall has taken all the time
						break
					}
				}
				require.NotErrorIs(t, err, drivers.ErrNotSent)
				proxy.Handle(nil)
				// The client may use the connection that has lost the answer until its own time-out, here of ten seconds.
				assert.Eventually(t, func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					replies, err := d.Do(ctx, batch(get(moving))...)
					return err == nil && replies[0] == "3"
				}, time.Minute, 10*time.Millisecond, "it was executed once more, and a lost answer hinders nobody for ever")

				m.Finish()
				assert.Equal(t, int64(4), do(t, d, batch(incr(moving))...)[0], "MOVED")
			})
		}
	}
}

// A master that has failed does not redirect to its successor. Clients must not wait until they reload the state of the
// cluster by themselves.
func TestClusterFindsTheSuccessorOfAMaster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, true, "--cluster-node-timeout", "2000")
	bus := c.Bus(t)
	opened := map[string]drivers.Driver{
		"goredis": goredisCluster(t, redis.ClusterOptions{
			Addrs: c.Addrs(), ClusterStateReloadInterval: time.Hour, ReadTimeout: time.Second,
		}),
		"goredis, ContextTimeoutEnabled": goredisCluster(t, redis.ClusterOptions{
			Addrs: c.Addrs(), ClusterStateReloadInterval: time.Hour, ContextTimeoutEnabled: true,
		}),
	}
	for name, open := range clusterDrivers {
		if opened[name] == nil {
			opened[name], _ = open(t, c.Addrs())
		}
	}
	type failing struct {
		what string
		fail func(*redistest.Server)
	}
	for i, failure := range short.Part(t, 1, []failing{
		{"is cut off from the others", func(s *redistest.Server) {
			for _, other := range c.Servers() {
				if other != s {
					bus.Refuse(s, other)
				}
			}
		}},
		{"hangs", (*redistest.Server).Pause},
		{"is killed", (*redistest.Server).Kill},
	}) {
		master, replica := c.Masters[i], c.Replicas[i]
		one, two := keysOf(t, c, master), keysOf(t, c, master)
		keys := [][]drivers.Command{{incr(one())}, {incr(two()), incr(two())}}
		for _, d := range opened {
			for _, batch := range keys {
				do(t, d, batch...)
			}
		}
		failure.fail(master)
		require.Eventually(t, replica.IsMaster, time.Minute, 10*time.Millisecond)
		for name, d := range opened {
			for _, batch := range keys {
				assert.Eventually(t, func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					replies, err := d.Do(ctx, batch...)
					if err != nil {
						return false
					}
					for _, reply := range replies {
						if _, refused := reply.(drivers.ServerError); refused {
							return false
						}
					}
					return true
				}, time.Minute, 10*time.Millisecond,
					"%s does not find the successor of one that %s, with %d commands", name, failure.what, len(batch))
			}
		}
		bus.Heal()
		master.Resume()
		c.Await(t)
	}
}

// A batch may be for several masters: even neighbouring slots are on different ones where the range of one ends. If one
// of them is down, the other executes its part, so the batch does not count as not sent.
func TestClusterBatchForAMasterThatIsDown(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false, "--cluster-require-full-coverage", "no")
	upKey, downKey := keysOf(t, c, c.Masters[0]), keysOf(t, c, c.Masters[1])
	type client struct {
		drivers.Driver
		up, down string
	}
	clients := map[string]client{}
	for name, open := range clusterDrivers {
		// The errors of other dialers do not match ErrNotSent. And go-redis writes to the log if these fail.
		if !strings.HasSuffix(name, ", from configuration") {
			continue
		}
		d, _ := open(t, c.Addrs())
		clients[name] = client{d, upKey(), downKey()}
		do(t, d, incr(clients[name].up), incr(clients[name].down))
	}
	c.Masters[1].Kill()
	for name, d := range clients {
		executed := 0
		for range 4 { // the first finds that its connection is broken, the others cannot connect
			before := c.Masters[0].Cmd(t, "GET", d.up)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := d.Do(ctx, incr(d.up), incr(d.down))
			cancel()
			require.Error(t, err, name)
			if c.Masters[0].Cmd(t, "GET", d.up) != before {
				executed++
				assert.NotErrorIs(t, err, drivers.ErrNotSent, name)
			}
		}
		assert.Positive(t, executed, "%s executes nothing while one of the masters is down", name)
	}
}

// keysOf returns a function that returns a new key in a new slot of s on each call.
func keysOf(t *testing.T, c *redistest.Cluster, s *redistest.Server) func() string {
	i, seen := 0, map[int]bool{}
	return func() string {
		for ; ; i++ {
			key := "{" + strconv.Itoa(i) + "}"
			if slot := c.Slot(t, key); !seen[slot] && c.Owner(t, slot) == s {
				seen[slot] = true
				return key
			}
		}
	}
}
