// Customdriver locks through a Redis driver that is not part of this repository: package plain beside it, which a URL
// can name like any other. The program is a module of its own, as it would be outside of the repository.
//
//	cd examples/customdriver && LOCKER_URL=redis+plain://localhost:6379 go run .
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	_ "example.com/customdriver/plain" // the Redis client that LOCKER_URL may name
	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "customdriver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := config.Open(ctx, cmp.Or(os.Getenv("LOCKER_URL"), "redis+plain://localhost:6379"))
	if err != nil {
		return err
	}
	defer l.Close()
	for range 3 {
		err := locker.Do(ctx, l, "customdriver", func(ctx context.Context) error {
			lease, _ := locker.LeaseFrom(ctx)
			fmt.Println("holding, with fencing token", lease.Fence())
			return nil
		})
		if err != nil {
			return err
		}
	}
	fmt.Println("ok: three locks by hand-written RESP")
	return nil
}
