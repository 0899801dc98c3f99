package redsync_test

import (
	"context"
	"fmt"
	"time"

	goredislib "github.com/redis/go-redis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/redsync"
	"github.com/golocker/locker/compat/redsync/redis/goredis/v9"
)

// The code of a program that has used go-redsync. Only the imports are new.
func Example() {
	ctx := context.Background()
	client := goredislib.NewClient(&goredislib.Options{Addr: "localhost:6379"})
	defer client.Close()
	rs := redsync.New(goredis.NewPool(client))

	mutex := rs.NewMutex("orders:42", redsync.WithExpiry(10*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer mutex.UnlockContext(ctx)
	// work
}

// Code that has moved, and code that has not, in one program.
func ExampleRedsync_Locker() {
	ctx := context.Background()
	client := goredislib.NewClient(&goredislib.Options{Addr: "localhost:6379"})
	defer client.Close()
	rs := redsync.New(goredis.NewPool(client))

	err := locker.Do(ctx, rs.Locker(), "orders:42", func(ctx context.Context) error {
		// work, which ends when ctx does, because the lock is lost
		return nil
	})
	fmt.Println(err)
}
