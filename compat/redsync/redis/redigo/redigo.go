// Package redigo makes pools for redsync of pools of github.com/gomodule/redigo.
package redigo

import (
	"github.com/gomodule/redigo/redis"

	redsyncredis "github.com/golocker/locker/compat/redsync/redis"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigodriver"
)

// NewPool returns the Pool of pool, which stays the caller's.
func NewPool(pool *redis.Pool) redsyncredis.Pool {
	return redsyncredis.PoolFunc(func() drivers.Driver { return redigodriver.New(pool) })
}
