package all_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	valkeyclient "github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/valkey"
)

func init() {
	clusterDrivers["valkey"] = func(t *testing.T, addrs []string) (drivers.Driver, time.Duration) {
		c, err := valkeyclient.NewClient(valkeyclient.ClientOption{InitAddress: addrs})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return valkey.New(c), time.Second
	}
}
