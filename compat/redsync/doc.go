// Package redsync has the API of github.com/go-redsync/redsync/v4, and its locks are those of this library. A program
// that uses go-redsync moves by its imports alone:
//
//	sed -i 's,github.com/go-redsync/redsync/v4,github.com/golocker/locker/compat/redsync,' *.go
//
//	rs := redsync.New(goredis.NewPool(client)) // with several pools: Redlock
//	mutex := rs.NewMutex("orders:42")
//	if err := mutex.LockContext(ctx); err != nil {
//		return err
//	}
//	defer mutex.UnlockContext(ctx)
//
// Its code can then move to package locker bit by bit. [Redsync.Locker] and [Mutex.Lease] are the ways there.
//
// # While programs of both kinds run
//
// A mutex has the same key in Redis as with go-redsync. A program that has moved and one that has not therefore exclude
// each other, if both use the same servers. Instances can be replaced one after the other. This does not hold for code
// that uses packages single and redlock with their default prefix "lock:": it needs the option Prefix("").
//
// Do not pass a Value from a program that has moved to one that has not: what is in Redis is not the Value alone. In
// the other direction it works.
//
// # What is better
//
// Lock waits in a queue, and gets the lock as soon as a holder that has moved releases it. Behind a holder that has
// not, it makes an attempt after each delay, as go-redsync does. Unlock works when its context has ended, and no call
// waits for a server that hangs if enough others answer. An acquisition whose answer was lost is undone in the
// background. The Lease has a fencing token.
//
// # What is different
//
//   - An expiry is between 10 ms and a day.
//   - WithGenValueFunc does not exist, because values are made by this library. A program that uses it does not
//     compile, so that its author learns of that before it runs. To see in Redis who holds a lock, inspect it: the
//     label names the host and the process.
//   - A lock of WithValue can be released and asked for, and not extended.
//   - WithFailFast and WithShufflePools have no effect.
//   - Texts of errors, and the fields Node and Nodes if a call was decided before all servers had answered.
//   - A pool is not a way to send commands. Pools are made by goredis/v9, redigo and rueidis below package redis, or of
//     any other driver by redis.PoolFunc. There are none for go-redis v6 to v8, nor for types of a program's own,
//     unless they embed a client of go-redis v9, which is then used.
//   - A *redis.Ring is refused.
//
// Package redislock is the same for github.com/bsm/redislock. docs/coming-from.md shows what code looks like when it
// has left both.
package redsync
