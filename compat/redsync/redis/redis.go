// Package redis says which servers a redsync.Redsync uses. Its packages make pools of clients: goredis/v9, redigo and
// rueidis.
package redis

import "github.com/golocker/locker/drivers"

// Pool is one Redis server, or one deployment that acts as one. Of the methods that a pool of go-redsync has, none is
// here: the commands of a lock are sent by a driver of this library.
type Pool interface {
	// Driver returns a new driver over the pool's client. Each Redsync has a driver of its own.
	Driver() drivers.Driver
}

// PoolFunc makes a Pool of any driver:
//
//	pool := redis.PoolFunc(func() drivers.Driver { return valkeydriver.New(client) })
type PoolFunc func() drivers.Driver

// Driver calls f.
func (f PoolFunc) Driver() drivers.Driver { return f() }
