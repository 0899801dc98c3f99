// Code generated from drivers/rueidisdriver by go generate; DO NOT EDIT.

package valkeydriver

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"

	"github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/drivers"
)

func init() { drivers.Register("valkey", open, drivers.SentinelMaster, drivers.RedisCluster) }

func open(_ context.Context, cfg drivers.Config) (drivers.Driver, error) {
	if cfg.Topology() == drivers.RedisCluster {
		return newMembers(cfg), nil
	}
	// NewClient dials at once, but a driver must not. The dialer therefore fails the first time. Because of
	// ForceSingleClient, NewClient then returns a client together with the error. That client dials when it is first
	// used, once for all waiting callers.
	lazy := true
	dialer := drivers.NewDialer(cfg)
	d := &subscriber{driver: driver{owned: true, dialer: dialer}, opening: make(chan struct{}, 1)}
	option := options(cfg, func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if lazy {
			return nil, errors.New("not dialled yet")
		}
		d.live.Store(false)
		return dialer.Dial(ctx)
	})
	option.InitAddress, option.ForceSingleClient = []string{cfg.Addr}, true
	client, err := valkey.NewClient(option)
	if client == nil {
		return nil, err
	}
	lazy, d.client = false, client
	return d, nil
}

// dialFunc is the type of valkey.ClientOption.DialCtxFn.
type dialFunc = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error)

// options returns what clients for one server and for a cluster have in common.
func options(cfg drivers.Config, dial dialFunc) valkey.ClientOption {
	return valkey.ClientOption{
		SelectDB: cfg.DB,
		AuthCredentialsFn: func(valkey.AuthCredentialsContext) (c valkey.AuthCredentials, err error) {
			c.Username, c.Password, err = cfg.Login(context.Background()) // the client has no context here
			return c, err
		},
		DialCtxFn:           dial,
		Dialer:              net.Dialer{Timeout: cfg.Timeout}, // for the handshake
		ConnWriteTimeout:    cfg.Timeout,
		DisableCache:        true,
		DisableRetry:        true,
		ClientSetInfo:       valkey.DisableClientSetInfo,
		PipelineMultiplex:   -1, // one connection
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
	}
}

// newMembers returns the driver of a cluster. NewClient asks the nodes for the masters at once, and fails if none of
// them answers. It is therefore called by the first Do, and again while it fails.
func newMembers(cfg drivers.Config) *members {
	m := &members{turn: make(chan struct{}, 1)}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.connect = func() (*cluster, error) {
		option := options(cfg, func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(m.ctx, cancel)()
			return cfg.At(addr).Dial(ctx)
		})
		option.InitAddress = slices.Clone(cfg.Cluster)
		client, err := valkey.NewClient(option)
		if err != nil {
			return nil, err
		}
		if client.Mode() != valkey.ClientModeCluster { // the only node that was given is none
			client.Close()
			return nil, errNoCluster
		}
		return &cluster{
			driver: driver{client: client, cluster: true, owned: true}, opening: make(chan struct{}, maxOpening),
		}, nil
	}
	return m
}

var errNoCluster = errors.New("the server is not a node of a Redis Cluster")
