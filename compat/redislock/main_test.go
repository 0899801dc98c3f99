package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker/compat/redislock"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const key = "orders:42"

// program is a server, and a process that uses it.
type program struct {
	*testing.T
	server *redistest.Server
	client *redis.Client
}

func newProgram(t *testing.T) *program {
	p := &program{T: t, server: redistest.Start(t)}
	p.client = p.another()
	return p
}

// another returns the client of another process. The Client behind its locks is closed after the test, because it has
// a connection for some seconds after a wait.
func (p *program) another() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: p.server.Addr(), ContextTimeoutEnabled: true})
	l := redislock.New(c).Locker()
	p.Cleanup(func() {
		_ = l.Close()
		_ = c.Close()
	})
	return c
}

// obtain returns a lock that does not end while a machine stands still.
func (p *program) obtain(opt *redislock.Options) *redislock.Lock {
	p.Helper()
	l, err := redislock.Obtain(p.Context(), p.client, key, time.Hour, opt)
	if err != nil {
		p.Fatal(err)
	}
	return l
}

// expired returns a lock that has expired, here and on the server.
func (p *program) expired() *redislock.Lock {
	p.Helper()
	for {
		l, err := redislock.Obtain(p.Context(), p.client, key, 50*time.Millisecond, nil)
		if err != nil { // the machine may stand still for longer than the lock lasts
			continue
		}
		<-l.Lease().Done()
		p.server.Cmd(p, "DEL", key) // it would end some milliseconds later
		return l
	}
}
