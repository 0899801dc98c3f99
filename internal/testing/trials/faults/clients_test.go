package faults

import (
	"context"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	valkeyclient "github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
	"github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/internal/testing/redistest"
)

// build makes a driver over a client that finds servers by itself. It follows the documentation of the driver, and
// leaves all other settings at the client's defaults, including repetitions. shut closes the client.
type build func(addrs []string) (d drivers.Driver, shut func(), err error)

// clusterDrivers know clusters. Redigo has no such client.
var clusterDrivers = map[string]build{
	"goredis": func(addrs []string) (drivers.Driver, func(), error) {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		return goredisdriver.New(c), func() { _ = c.Close() }, nil
	},
	"rueidis": func(addrs []string) (drivers.Driver, func(), error) {
		return overRueidis(rueidisclient.ClientOption{InitAddress: addrs})
	},
	"valkey": func(addrs []string) (drivers.Driver, func(), error) {
		c, err := valkeyclient.NewClient(valkeyclient.ClientOption{InitAddress: addrs})
		if err != nil {
			return nil, nil, err
		}
		return valkeydriver.New(c), c.Close, nil
	},
}

// sentinelDrivers ask a sentinel for the master.
var sentinelDrivers = map[string]build{
	"goredis": func(addrs []string) (drivers.Driver, func(), error) {
		c := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.SentinelMaster, SentinelAddrs: addrs, ContextTimeoutEnabled: true,
		})
		return goredisdriver.New(c), func() { _ = c.Close() }, nil
	},
	"rueidis": func(addrs []string) (drivers.Driver, func(), error) {
		return overRueidis(rueidisclient.ClientOption{
			InitAddress: addrs, Sentinel: rueidisclient.SentinelOption{MasterSet: redistest.SentinelMaster},
		})
	},
}

func overRueidis(opts rueidisclient.ClientOption) (drivers.Driver, func(), error) {
	c, err := rueidisclient.NewClient(opts)
	if err != nil {
		return nil, nil, err
	}
	return rueidisdriver.New(c), c.Close, nil
}

// go-redis writes to its process-wide logger when it cannot connect, which the faults cause often.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
