package faults

import (
	"context"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredis"
	"github.com/golocker/locker/drivers/rueidis"
)

// clusterDrivers make clients that know clusters, as a program would that follows the advice of the drivers'
// documentation, and leaves everything else to the clients' defaults, repetitions included. They close the clients,
// too.
var clusterDrivers = map[string]func(addrs []string) (drivers.Driver, error){
	"goredis": func(addrs []string) (drivers.Driver, error) {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		return owner{goredis.New(c).(known), func() { _ = c.Close() }}, nil
	},
	"rueidis": func(addrs []string) (drivers.Driver, error) {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: addrs})
		if err != nil {
			return nil, err
		}
		return owner{rueidis.New(c).(known), c.Close}, nil
	},
}

// go-redis writes to its process-wide logger when it cannot connect, which is what is done to it here.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// known is what these drivers are besides, which must show through.
type known interface {
	drivers.Cluster
	drivers.Direct
}

// owner is a driver with its client.
type owner struct {
	known
	shut func()
}

func (o owner) Close() error {
	err := o.known.Close()
	o.shut()
	return err
}
