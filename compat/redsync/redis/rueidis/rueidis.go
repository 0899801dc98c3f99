// Package rueidis makes pools for redsync of clients of github.com/redis/rueidis.
package rueidis

import (
	"github.com/redis/rueidis"

	redsyncredis "github.com/golocker/locker/compat/redsync/redis"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/rueidisdriver"
)

// NewPool returns the Pool of client, which stays the caller's. The pool of go-redsync takes rueidiscompat.NewAdapter
// of the client instead.
func NewPool(client rueidis.Client) redsyncredis.Pool {
	return redsyncredis.PoolFunc(func() drivers.Driver { return rueidisdriver.New(client) })
}
