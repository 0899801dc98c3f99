package main

import (
	"context"
	"fmt"
	"net"
	"time"

	goredis6 "github.com/go-redis/redis"
	goredis7 "github.com/go-redis/redis/v7"
	goredis8 "github.com/go-redis/redis/v8"
	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	rueidislib "github.com/redis/rueidis"
	valkey "github.com/valkey-io/valkey-go"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
)

// All contestants over one client library get clients from the same function here. So the comparison is about how
// they use the client. The settings are lean, which favours contestants that add little to the client.

// limits of a client.
type limits struct {
	conns   int           // to each server, for clients that do not multiplex: enough that no goroutine waits for one
	timeout time.Duration // bounds one exchange
}

// With Redlock the timeout is short, because nothing else ends a redsync unlock on a node that hangs.
const (
	longTimeout  = 5 * time.Second
	shortTimeout = 500 * time.Millisecond
)

// newGoredis makes no retries and sends no commands of its own. It keeps to deadlines, which the redlock scenarios
// need.
func newGoredis(addr string, l limits) *goredislib.Client {
	return goredislib.NewClient(&goredislib.Options{
		Addr: addr, PoolSize: l.conns,
		DialTimeout: l.timeout, ReadTimeout: l.timeout, WriteTimeout: l.timeout, PoolTimeout: 5 * time.Second,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		Protocol: 2, DisableIdentity: true, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// newRedigo keeps all connections, and does not test them before use.
func newRedigo(addr string, l limits) *redigolib.Pool {
	return &redigolib.Pool{
		Dial: func() (redigolib.Conn, error) {
			return redigolib.Dial("tcp", addr, redigolib.DialConnectTimeout(l.timeout),
				redigolib.DialReadTimeout(l.timeout), redigolib.DialWriteTimeout(l.timeout))
		},
		MaxIdle: l.conns, MaxActive: l.conns, Wait: true,
	}
}

// rueidisOption has automatic pipelining with rueidis' default number of connections, no client cache, no retries.
func rueidisOption(addr string, l limits) rueidislib.ClientOption {
	return rueidislib.ClientOption{
		InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		ClientSetInfo:    rueidislib.DisableClientSetInfo,
		ConnWriteTimeout: l.timeout, Dialer: net.Dialer{Timeout: l.timeout},
	}
}

// newGoredis8, newGoredis7 and newGoredis6 do the same for older versions.
func newGoredis8(addr string, l limits) *goredis8.Client {
	return goredis8.NewClient(&goredis8.Options{
		Addr: addr, PoolSize: l.conns, MaxRetries: -1,
		DialTimeout: l.timeout, ReadTimeout: l.timeout, WriteTimeout: l.timeout, PoolTimeout: 5 * time.Second,
	})
}

func newGoredis7(addr string, l limits) *goredis7.Client {
	return goredis7.NewClient(&goredis7.Options{
		Addr: addr, PoolSize: l.conns, MaxRetries: -1,
		DialTimeout: l.timeout, ReadTimeout: l.timeout, WriteTimeout: l.timeout, PoolTimeout: 5 * time.Second,
	})
}

func newGoredis6(addr string, l limits) *goredis6.Client {
	return goredis6.NewClient(&goredis6.Options{
		Addr: addr, PoolSize: l.conns, // it makes no retries unless asked to
		IdleCheckFrequency: -1, // else a goroutine outlives the client by up to a minute
		DialTimeout:        l.timeout, ReadTimeout: l.timeout, WriteTimeout: l.timeout, PoolTimeout: 5 * time.Second,
	})
}

// newValkey is newRueidis for its fork.
func newValkey(addr string, l limits) (valkey.Client, error) {
	return valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		ClientSetInfo:    valkey.DisableClientSetInfo,
		ConnWriteTimeout: l.timeout, Dialer: net.Dialer{Timeout: l.timeout},
	})
}

func newRueidis(addr string, l limits) (rueidislib.Client, error) {
	return rueidislib.NewClient(rueidisOption(addr, l))
}

// newDriver is this library's driver over such a client, as in a program that has a client already.
func newDriver(client, addr string, l limits) (drivers.Driver, func(), error) {
	switch client {
	case "goredis":
		c := newGoredis(addr, l)
		return goredisdriver.New(c), func() { _ = c.Close() }, nil
	case "redigo":
		p := newRedigo(addr, l)
		return redigodriver.New(p), func() { _ = p.Close() }, nil
	case "rueidis":
		c, err := newRueidis(addr, l)
		if err != nil {
			return nil, nil, err
		}
		return rueidisdriver.New(c), c.Close, nil
	}
	return nil, nil, fmt.Errorf("no client %q", client)
}

// quiet keeps go-redis from reporting on stderr that the nodes are down which a scenario took down.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { goredislib.SetLogger(quiet{}) }

var clients = []string{"goredis", "redigo", "rueidis"}

// redsyncOnly are clients that only redsync is measured with. Each is an older version or a fork of one of clients,
// with which it is compared.
var redsyncOnly = []struct{ name, kin string }{
	{"valkey-go", "rueidis"}, {"goredis v8", "goredis"}, {"goredis v7", "goredis"}, {"goredis v6", "goredis"},
}
