package redigo

import (
	"context"
	"sync"

	"github.com/gomodule/redigo/redis"
)

// borrowers shares out the idle connections of a user's pool, so that each of two callers that see one is not sure to get it.
// Whoever is not makes the pool dial, which knows no context. The user's own calls are not counted: for them to come between
// costs a call the pool's dial, as it would without.
type borrowers struct {
	mu sync.Mutex
	// sure is how many are taking what they have seen to be idle, which is a matter of microseconds, and others how many take
	// what the pool gives them.
	sure, others int
	taken        sync.Cond // sure is 0
}

func newBorrowers() *borrowers {
	b := new(borrowers)
	b.taken.L = &b.mu
	return b
}

// reserve reports whether an idle connection is the caller's who comes now.
func (b *borrowers) reserve(pool *redis.Pool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if pool.IdleCount() <= b.sure+b.others {
		return false
	}
	b.sure++
	return true
}

// get gets a connection, which reserved says that reserve has promised. Without, it waits for those that have such a promise.
func (b *borrowers) get(ctx context.Context, pool *redis.Pool, reserved bool) (redis.Conn, error) {
	if !reserved {
		b.mu.Lock()
		b.others++ // from now on there is one less to promise
		for b.sure > 0 {
			b.taken.Wait()
		}
		b.mu.Unlock()
	}
	conn, err := pool.GetContext(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !reserved {
		b.others--
	} else if b.sure--; b.sure == 0 {
		b.taken.Broadcast()
	}
	return conn, err
}
