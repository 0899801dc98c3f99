package redislock

import (
	"runtime"
	"sync"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/internal/embedded"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/single"
)

// lockers has the Client of each client of go-redis that is in use. Programs call New and Obtain for each lock, and
// callers that wait should share a connection for messages nevertheless. It forgets a Client when no lock has it.
var lockers = struct {
	sync.Mutex
	of map[RedisClient]weak.Pointer[locker.Client]
}{of: make(map[RedisClient]weak.Pointer[locker.Client])}

// lockerOf returns the Client of client.
func lockerOf(client RedisClient) *locker.Client {
	switch known := embedded.In(client).(type) {
	case *redis.Client, *redis.ClusterClient:
		client = known
	default: // it is refused, and it may be of a type that cannot be a key
		return single.New(goredisdriver.New(client), single.Prefix(""))
	}
	lockers.Lock()
	defer lockers.Unlock()
	if l := lockers.of[client].Value(); l != nil {
		return l
	}
	l := single.New(goredisdriver.New(client), single.Prefix(""))
	p := weak.Make(l)
	lockers.of[client] = p
	runtime.AddCleanup(l, func(client RedisClient) {
		lockers.Lock()
		defer lockers.Unlock()
		if lockers.of[client] == p { // otherwise it has another one by now
			delete(lockers.of, client)
		}
	}, client)
	return l
}
