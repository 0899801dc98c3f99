package redsync_test

import (
	"strconv"
	"testing"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"

	"github.com/golocker/locker/compat/redsync"
	"github.com/golocker/locker/compat/redsync/redis"
	"github.com/golocker/locker/compat/redsync/redis/goredis/v9"
	"github.com/golocker/locker/compat/redsync/redis/redigo"
	"github.com/golocker/locker/compat/redsync/redis/rueidis"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/redlock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// clients make a pool for a server, as programs do.
var clients = map[string]func(t *testing.T, addr string) redis.Pool{
	"goredis": func(t *testing.T, addr string) redis.Pool {
		c := goredislib.NewClient(&goredislib.Options{Addr: addr, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return goredis.NewPool(c)
	},
	"redigo": func(t *testing.T, addr string) redis.Pool {
		p := &redigolib.Pool{MaxIdle: 8, Dial: func() (redigolib.Conn, error) { return redigolib.Dial("tcp", addr) }}
		t.Cleanup(func() { _ = p.Close() })
		return redigo.NewPool(p)
	},
	"rueidis": func(t *testing.T, addr string) redis.Pool {
		c, err := rueidislib.NewClient(rueidislib.ClientOption{
			InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return rueidis.NewPool(c)
	},
}

// deployment is some servers, and the program that uses them.
type deployment struct {
	*testing.T
	servers []*redistest.Server
	pools   []redis.Pool
}

// on runs f with each client library, on one server and on three.
func on(t *testing.T, f func(d *deployment)) {
	for name, pool := range clients {
		for _, n := range []int{1, 3} {
			t.Run(name+" "+strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				f(deploy(t, n, pool))
			})
		}
	}
}

func deploy(t *testing.T, n int, pool func(t *testing.T, addr string) redis.Pool) *deployment {
	d := &deployment{T: t}
	for range n {
		s := redistest.Start(t)
		d.servers = append(d.servers, s)
		d.pools = append(d.pools, pool(t, s.Addr()))
	}
	return d
}

// redsync returns a Redsync of its own, as another process has. On a machine that stands still, servers may take longer
// than the default to answer.
func (d *deployment) redsync() *redsync.Redsync {
	rs := redsync.Open(d.pools, redlock.Budget(20*time.Second))
	d.Cleanup(func() { _ = rs.Locker().Close() })
	return rs
}

// long are options with which nothing ends while a machine stands still.
var long = options(redsync.WithExpiry(time.Hour), redsync.WithTries(1<<20))

func options(opts ...redsync.Option) []redsync.Option { return opts }

// mutex returns a mutex of a Redsync of its own.
func (d *deployment) mutex(opts ...redsync.Option) *redsync.Mutex {
	return d.redsync().NewMutex("orders:42", append(long[:len(long):len(long)], opts...)...)
}

// locked returns a mutex that is locked.
func (d *deployment) locked(opts ...redsync.Option) *redsync.Mutex {
	d.Helper()
	m := d.mutex(opts...)
	if err := m.Lock(); err != nil {
		d.Fatal(err)
	}
	return m
}

// brief is an expiry that ends soon. A machine that stands still for longer costs a try.
var brief = redsync.WithExpiry(200 * time.Millisecond)

// expired returns a mutex whose lock has expired, here and on all servers.
func (d *deployment) expired(opts ...redsync.Option) *redsync.Mutex {
	d.Helper()
	m := d.locked(append(opts, brief, redsync.WithTimeoutFactor(100))...)
	<-m.Lease().Done()
	d.cmd("DEL", m.Name()) // it would end some milliseconds later
	return m
}

// cmd sends a command to all servers.
func (d *deployment) cmd(args ...any) {
	d.Helper()
	for _, s := range d.servers {
		s.Cmd(d, args...)
	}
}
