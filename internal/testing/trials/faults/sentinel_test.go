package faults

import (
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
)

// sentinelDrivers make drivers over clients that ask a sentinel for the master, like clusterDrivers. Redigo has no such
// client.
var sentinelDrivers = map[string]func(addrs []string) (drivers.Driver, error){
	"goredis": func(addrs []string) (drivers.Driver, error) {
		c := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.SentinelMaster, SentinelAddrs: addrs, ContextTimeoutEnabled: true,
		})
		return follower{goredisdriver.New(c).(attentive), func() { _ = c.Close() }}, nil
	},
	"rueidis": func(addrs []string) (drivers.Driver, error) {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{
			InitAddress: addrs, Sentinel: rueidisclient.SentinelOption{MasterSet: redistest.SentinelMaster},
		})
		if err != nil {
			return nil, err
		}
		return follower{rueidisdriver.New(c).(attentive), c.Close}, nil
	},
}

// attentive has the optional interfaces of these drivers, which follower must not hide.
type attentive interface {
	drivers.Driver
	drivers.Subscriber
	drivers.Direct
}

// follower is a driver that owns its client, like owner.
type follower struct {
	attentive
	shut func()
}

func (f follower) Close() error {
	err := f.attentive.Close()
	f.shut()
	return err
}
