package faults

import (
	"context"

	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"go.uber.org/goleak"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredis"
	"github.com/golocker/locker/drivers/rueidis"
)

// clusterDrivers make clients that know clusters, as a program would that follows the advice of the drivers' documentation,
// and leaves everything else to the clients' defaults, repetitions included. They close the clients, too.
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

// A rueidis client of a cluster that is closed lets its pauses run out: between two looks at what the cluster is like, and
// before it closes connections to servers that have left.
var (
	refreshing = goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")
	closing    = goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2")
)

// known is what these drivers are besides, which must show through.
type known interface {
	drivers.Spread
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
