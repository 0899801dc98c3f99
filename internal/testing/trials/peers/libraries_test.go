package peers

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/golocker/locker"
	_ "github.com/golocker/locker/backends/etcdlock" // for URLs, as the next
	_ "github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/goredisdriver"
)

// library is a lock library in a process, used as its own documentation says, with the TTL of the trial.
type library interface {
	// lock waits until it has the lock, until ctx ends, or until the library gives up. The caller then calls it again.
	lock(ctx context.Context, key string) (hold, error)
	close()
}

type hold struct {
	token  uint64          // 0: there is none
	lost   <-chan struct{} // nil: the library has no notice of a loss
	unlock func()
}

// hosts returns the addresses of a URL of a store.
func hosts(at string) []string {
	u, err := url.Parse(at)
	if err != nil {
		panic(err)
	}
	return strings.Split(u.Host, ",")
}

// ---- a control: a lock that does nothing

type control struct{}

func openControl(string) (library, error) { return control{}, nil }

func (control) lock(context.Context, string) (hold, error) { return hold{unlock: func() {}}, nil }
func (control) close()                                     {}

// ---- SET NX by hand

type byHand struct{ client *redis.Client }

func openByHand(at string) (library, error) {
	return byHand{redis.NewClient(&redis.Options{Addr: hosts(at)[0]})}, nil
}

// release is from https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, "This is accomplished by
// the following Lua script".
const release = `if redis.call("get",KEYS[1]) == ARGV[1] then
	return redis.call("del",KEYS[1])
else
	return 0
end`

// The page says "SET resource_name my_random_value NX PX 30000", and of clients that fail "it should try again after a
// random delay".
func (b byHand) lock(ctx context.Context, key string) (hold, error) {
	value := rand.Uint64()
	for {
		ok, err := b.client.SetNX(ctx, key, value, ttl).Result()
		if err != nil {
			return hold{}, err
		}
		if ok {
			return hold{unlock: func() { b.client.Eval(context.Background(), release, []string{key}, value) }}, nil
		}
		select {
		case <-time.After(50*time.Millisecond + rand.N(100*time.Millisecond)):
		case <-ctx.Done():
			return hold{}, ctx.Err()
		}
	}
}

func (b byHand) close() { _ = b.client.Close() }

// ---- redsync

type ofRedsync struct {
	*redsync.Redsync
	clients []*redis.Client
}

// https://github.com/go-redsync/redsync/blob/master/README.md, "Usage": "client := goredislib.NewClient(…)",
// "pool := goredis.NewPool(client)", "rs := redsync.New(pool)".
func openRedsync(at string) (library, error) {
	var pools []redsyncredis.Pool
	var r ofRedsync
	for _, addr := range hosts(at) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		r.clients, pools = append(r.clients, client), append(pools, redsyncgoredis.NewPool(client))
	}
	r.Redsync = redsync.New(pools...)
	return r, nil
}

// The same: "mutex := rs.NewMutex(mutexname)", "mutex.Lock()", "mutex.Unlock()". It has no notice of a loss, and no
// token.
func (r ofRedsync) lock(ctx context.Context, key string) (hold, error) {
	mutex := r.NewMutex(key, redsync.WithExpiry(ttl))
	if err := mutex.LockContext(ctx); err != nil {
		return hold{}, err
	}
	return hold{unlock: func() { _, _ = mutex.Unlock() }}, nil
}

func (r ofRedsync) close() {
	for _, c := range r.clients {
		_ = c.Close()
	}
}

// ---- redislock

type ofRedislock struct {
	*redislock.Client
	client *redis.Client
}

// https://github.com/bsm/redislock/blob/main/README.md, "Examples": "locker := redislock.New(client)".
func openRedislock(at string) (library, error) {
	client := redis.NewClient(&redis.Options{Addr: hosts(at)[0]})
	return ofRedislock{redislock.New(client), client}, nil
}

// The same: "lock, err := locker.Obtain(ctx, "my-key", ttl, nil)", and "External watchdog": "refreshes the lock every
// ttl/3. The work context is cancelled if a refresh fails". Its example of retries has
// "redislock.LinearBackoff(100*time.Millisecond)".
func (r ofRedislock) lock(ctx context.Context, key string) (hold, error) {
	l, err := r.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
	if err != nil {
		return hold{}, err
	}
	work, cancel := context.WithCancel(context.Background())
	go func() {
		t := time.NewTicker(ttl / 3)
		defer t.Stop()
		for {
			select {
			case <-work.Done():
				return
			case <-t.C:
				if err := l.Refresh(work, ttl, nil); err != nil {
					cancel()
					return
				}
			}
		}
	}()
	return hold{lost: work.Done(), unlock: func() {
		cancel()
		_ = l.Release(context.Background())
	}}, nil
}

func (r ofRedislock) close() { _ = r.client.Close() }

// ---- rueidislock

type ofRueidislock struct{ rueidislock.Locker }

// https://github.com/redis/rueidis/blob/main/rueidislock/README.md: "KeyMajority: 1, // Use KeyMajority=1 if you have
// only one Redis instance", "NoLoopTracking: true, // Enable this to have better performance if all your Redis are >=
// 7.0.5".
func openRueidislock(at string) (library, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: hosts(at)},
		KeyMajority:  1, NoLoopTracking: true, KeyValidity: ttl,
	})
	return ofRueidislock{l}, err
}

// The same: "ctx, cancel, err := locker.WithContext(context.Background(), "my_lock")", "use the ctx as normal", "invoke
// cancel() to release the lock". The context of the lock is one of the context of the call, which must not end with it.
func (r ofRueidislock) lock(ctx context.Context, key string) (hold, error) {
	bound, end := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, end)
	held, cancel, err := r.WithContext(bound, key)
	if err != nil || !stop() {
		end()
		return hold{}, context.Cause(ctx)
	}
	return hold{lost: held.Done(), unlock: func() {
		cancel()
		end()
	}}, nil
}

func (r ofRueidislock) close() { r.Close() }

// ---- etcd's concurrency.Mutex

type ofEtcd struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func openEtcd(at string) (library, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: hosts(at)})
	return &ofEtcd{client: client}, err
}

// https://pkg.go.dev/go.etcd.io/etcd/client/v3/concurrency: "NewSession gets the leased session for a client", "Done
// returns a channel that closes when the lease is orphaned, expires, or is otherwise no longer being refreshed", "Lock
// locks the mutex with a cancelable context", "Header is the response header received from etcd on acquiring the lock".
func (e *ofEtcd) lock(ctx context.Context, key string) (hold, error) {
	if e.session == nil {
		s, err := concurrency.NewSession(e.client, concurrency.WithTTL(int(ttl/time.Second)))
		if err != nil {
			return hold{}, err
		}
		e.session = s
	}
	s := e.session
	m := concurrency.NewMutex(s, "/"+key)
	if err := m.Lock(ctx); err != nil {
		select {
		case <-s.Done():
			e.session = nil
		default:
		}
		return hold{}, err
	}
	return hold{uint64(m.Header().Revision), s.Done(), func() {
		call, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = m.Unlock(call)
	}}, nil
}

func (e *ofEtcd) close() {
	if e.session != nil {
		_ = e.session.Close()
	}
	_ = e.client.Close()
}

// ---- PostgreSQL's advisory locks

type advisory struct{ *pgxpool.Pool }

func openAdvisory(at string) (library, error) {
	pool, err := pgxpool.New(context.Background(), at)
	return advisory{pool}, err
}

// https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS: "Once acquired at session level, an
// advisory lock is held until explicitly released or the session ends". So each lock has a session to itself.
func (a advisory) lock(ctx context.Context, key string) (hold, error) {
	h := fnv.New64()
	_, _ = h.Write([]byte(key))
	id := int64(h.Sum64())
	conn, err := a.Acquire(ctx)
	if err != nil {
		return hold{}, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", id); err != nil {
		_ = conn.Hijack().Close(ctx)
		return hold{}, err
	}
	return hold{unlock: func() {
		_, _ = conn.Exec(context.Background(), "SELECT pg_advisory_unlock($1)", id)
		conn.Release()
	}}, nil
}

func (a advisory) close() { a.Close() }

// ---- this library

type ours struct{ *config.Opened }

// README.md: "l := … config.Open with a URL", "Code that cannot be a function calls Lock or TryLock, stops when
// lease.Done() is closed, and calls Unlock", "lease.Fence() is the fencing token". query is what the URL has more.
func openOurs(scheme, query string) func(at string) (library, error) {
	return func(at string) (library, error) {
		if scheme != "" {
			at = scheme + "://" + strings.Join(hosts(at), ",") + query
		}
		l, err := config.Open(context.Background(), at, locker.TTL(ttl))
		return ours{l}, err
	}
}

func (o ours) lock(ctx context.Context, key string) (hold, error) {
	lease, err := o.Lock(ctx, key)
	if err != nil {
		return hold{}, err
	}
	return hold{lease.Fence(), lease.Done(), func() { _ = lease.Unlock(context.Background()) }}, nil
}

func (o ours) close() { _ = o.Close() }
