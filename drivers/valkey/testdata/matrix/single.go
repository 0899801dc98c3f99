package single_test

import (
	"testing"

	valkeyclient "github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/valkey"
	"github.com/golocker/locker/internal/testing/redistest"
)

func init() {
	builders["valkey"] = opened("valkey")
	builders["valkey, user's client"] = func(t testing.TB, addr string) drivers.Driver {
		return withOptions(t, valkeyclient.ClientOption{InitAddress: []string{addr}})
	}
	clusterBuilders["valkey"] = func(t testing.TB, addrs []string) drivers.Driver {
		return withOptions(t, valkeyclient.ClientOption{InitAddress: addrs})
	}
	sentinelBuilders["valkey"] = func(t testing.TB, sentinel string) drivers.Driver {
		return withOptions(t, valkeyclient.ClientOption{
			InitAddress: []string{sentinel}, Sentinel: valkeyclient.SentinelOption{MasterSet: redistest.SentinelMaster},
		})
	}
}

// withOptions drives a client that a user has made.
func withOptions(t testing.TB, options valkeyclient.ClientOption) drivers.Driver {
	c, err := valkeyclient.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return valkey.New(c)
}
