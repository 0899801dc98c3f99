// Config: the program locks, and a YAML file chooses the backend.
//
//	go run ./examples/config                                  # with locker.yaml beside this file: in this process
//	go run ./examples/config -config /etc/locker.yaml         # with that file
//	LOCKER_TTL=5s go run ./examples/config                    # the environment wins over the file
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all" // the Redis clients that the file may name
)

func main() {
	path := flag.String("config", "examples/config/locker.yaml", "YAML file that says which locks to use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	if err := run(ctx, *path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	c, err := config.Load(path, os.Environ()...) // reports all errors of the file at once
	if err != nil {
		return err
	}
	fmt.Println("locks from", c) // passwords are masked
	l, err := c.Open(ctx)
	if err != nil {
		return err
	}
	defer l.Close()

	const workers, rounds = 3, 5
	inside, counter := 0, 0 // protected by the lock
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for range workers {
		wg.Go(func() {
			for range rounds {
				// Do locks, calls the function and unlocks. The function's context ends if the lock is lost.
				err := locker.Do(ctx, l, "example", func(ctx context.Context) error {
					if inside++; inside != 1 {
						return fmt.Errorf("VIOLATION: %d workers hold the lock", inside)
					}
					defer func() { inside-- }()
					select {
					case <-time.After(10 * time.Millisecond):
					case <-ctx.Done():
						return context.Cause(ctx)
					}
					counter++
					return nil
				})
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	fmt.Printf("ok: %d workers took turns, %d in all\n", workers, counter)
	return nil
}
