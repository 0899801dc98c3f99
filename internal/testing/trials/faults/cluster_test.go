package faults

import (
	"context"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
)

// clusterDrivers make drivers over clients for clusters. They follow the documentation of the drivers, and leave all
// other settings at the clients' defaults, including repetitions. Close of a driver also closes its client.
var clusterDrivers = map[string]func(addrs []string) (drivers.Driver, error){
	"goredis": func(addrs []string) (drivers.Driver, error) {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		return owner{goredisdriver.New(c).(known), func() { _ = c.Close() }}, nil
	},
	"rueidis": func(addrs []string) (drivers.Driver, error) {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: addrs})
		if err != nil {
			return nil, err
		}
		return owner{rueidisdriver.New(c).(known), c.Close}, nil
	},
}

// go-redis writes to its process-wide logger when it cannot connect, which the faults cause often.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// known has the optional interfaces of these drivers, which owner must not hide.
type known interface {
	drivers.Cluster
	drivers.Direct
}

// owner is a driver that owns its client.
type owner struct {
	known
	shut func()
}

func (o owner) Close() error {
	err := o.known.Close()
	o.shut()
	return err
}
