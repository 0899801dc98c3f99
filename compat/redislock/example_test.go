package redislock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker/compat/redislock"
)

// The code of a program that has used bsm/redislock. Only the import is new.
func Example() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()

	lock, err := redislock.New(client).Obtain(ctx, "orders:42", 10*time.Second, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(100*time.Millisecond), 50),
	})
	if err == redislock.ErrNotObtained {
		fmt.Println("another process is at it")
		return
	} else if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	// work
}
