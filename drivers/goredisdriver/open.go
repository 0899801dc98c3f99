package goredisdriver

import (
	"context"
	"net"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/golocker/locker/drivers"
)

func init() { drivers.Register("goredis", open, drivers.SentinelMaster, drivers.RedisCluster) }

func open(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
	if cfg.Topology() == drivers.RedisCluster {
		return openCluster(cfg), nil
	}
	dialer := drivers.NewDialer(cfg)
	return &subscriber{driver: driver{bounded: true, owned: true, dialer: dialer, client: redis.NewClient(&redis.Options{
		Network: cfg.Network, Addr: cfg.Addr, CredentialsProviderContext: cfg.Login, DB: cfg.DB,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return connected(dialer.Dial(ctx))
		},
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		ContextTimeoutEnabled: true, MaxRetries: -1,
		PipelinePoolSize: -1, // batches share the pool instead of doubling the number of connections
		// Lock scripts return the same in RESP2 and RESP3, but with RESP3 the client looks for push messages around
		// every command. Identity and maintenance notifications need commands on each new connection, and the latter
		// also resolve host names.
		Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: disabled(),
	})}}, nil
}

// openCluster returns the driver of a new client for the nodes of a cluster. The options have the same reasons as those
// of open.
func openCluster(cfg drivers.Config) drivers.Driver {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cfg.Cluster, CredentialsProviderContext: cfg.Login,
		Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return connected(cfg.At(addr).Dial(ctx))
		},
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		ContextTimeoutEnabled: true, PipelinePoolSize: -1,
		Protocol: 2, DisableIdentity: true, MaintNotificationsConfig: disabled(),
	})
	return &cluster{driver{client: client, bounded: true, owned: true, follows: true, cluster: client}}
}

func disabled() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// connected returns conn, or a substitute if there is none.
func connected(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		end, _ := net.Pipe()
		conn = unconnected{end, err}
	}
	return conn, nil
}

// unconnected replaces a connection that could not be opened. It makes the handshake fail with the reason. If the dial
// itself failed, the pool would write to the process's log. After PoolSize failures, it would also dial only once a
// second, in the background, which delays recovery.
type unconnected struct {
	net.Conn // one end of a pipe, for deadlines, addresses and Close
	err      error
}

func (c unconnected) Read([]byte) (int, error)  { return 0, c.err }
func (c unconnected) Write([]byte) (int, error) { return 0, c.err }
