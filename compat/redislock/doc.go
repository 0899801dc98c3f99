// Package redislock has the API of github.com/bsm/redislock v0.10, and its locks are those of this library. A program
// that uses bsm/redislock moves by its imports alone:
//
//	sed -i 's,github.com/bsm/redislock,github.com/golocker/locker/compat/redislock,' *.go
//
//	lock, err := redislock.Obtain(ctx, rdb, "orders:42", 10*time.Second, nil)
//	if err == redislock.ErrNotObtained {
//		return nil // another process is at it
//	} else if err != nil {
//		return err
//	}
//	defer lock.Release(ctx)
//
// Its code can then move to package locker bit by bit. [Client.Locker] and [Lock.Lease] are the ways there.
//
// # While programs of both kinds run
//
// A lock has the same key in Redis as with bsm/redislock. A program that has moved and one that has not therefore
// exclude each other. Instances can be replaced one after the other. This does not hold for code that uses package
// single with its default prefix "lock:": it needs the option Prefix("").
//
// One habit breaks it: bsm/redislock gives a lock to a caller whose Options.Token is what the value in Redis begins
// with. The values of this library begin with 16 digits. So a program that has not moved must not have a token that
// consists of a few digits.
//
// # What is better
//
// Obtain waits in a queue, and gets the lock as soon as a holder that has moved releases it. Behind a holder that has
// not, it makes an attempt after each pause of its RetryStrategy, as bsm/redislock does. Release works when its context
// has ended. An acquisition whose answer was lost is undone in the background. The Lease has a fencing token.
//
// # What is different
//
//   - A TTL is between 10 ms and a day.
//   - Options.Token does not exist, because tokens are made by this library, and locks are not re-entrant. A program
//     that sets it does not compile, so that its author learns of that before it runs.
//   - Options.Metadata is the label of the lock, a text of at most 64 bytes. Other texts are refused with an error, so
//     that none is lost silently. In Redis, the label is a part of the value.
//   - Refresh shortens no lock.
//   - A lock counts as lost a hundredth of its TTL and some milliseconds before it ends in Redis, for clocks that run
//     at different speeds.
//   - If ctx ends while Obtain waits, the error also matches ErrNotObtained.
//   - A client is one of go-redis that keeps each key on one server, or a type of the program that embeds one. A
//     *redis.Ring is refused.
//   - ObtainMulti does not exist, so a lock has one key: locker.TryLockAll does the same.
//
// Package redsync is the same for github.com/go-redsync/redsync. docs/coming-from.md shows what code looks like when it
// has left both.
package redislock
