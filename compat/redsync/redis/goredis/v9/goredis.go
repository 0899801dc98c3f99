// Package goredis makes pools for redsync of clients of github.com/redis/go-redis/v9.
package goredis

import (
	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker/compat/internal/embedded"
	redsyncredis "github.com/golocker/locker/compat/redsync/redis"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/goredisdriver"
)

// NewPool returns the Pool of client, which stays the caller's. drivers/goredisdriver says which clients can keep
// locks. Of a type of the program that embeds one, that one is used. With another client, such as a *redis.Ring, each
// Lock fails with the reason.
func NewPool(client redis.UniversalClient) redsyncredis.Pool {
	return redsyncredis.PoolFunc(func() drivers.Driver { return goredisdriver.New(embedded.In(client)) })
}
