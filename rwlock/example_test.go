package rwlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/rwlock"
)

func Example() {
	l := memory.New()
	defer l.Close()
	rw := rwlock.New(l)
	ctx := context.Background()

	a, _ := rw.Shared().Lock(ctx, "config")
	b, _ := rw.Shared().Lock(ctx, "config") // beside a
	_, err := rw.Exclusive().TryLock(ctx, "config")
	fmt.Println("writer refused:", errors.Is(err, locker.ErrHeld))
	_ = a.Unlock(ctx)
	_ = b.Unlock(ctx)

	err = locker.Do(ctx, rw.Exclusive(), "config", func(context.Context) error {
		_, err := rw.Shared().TryLock(ctx, "config")
		fmt.Println("reader refused:", errors.Is(err, locker.ErrHeld))
		return nil
	})
	fmt.Println(err)
	// Output:
	// writer refused: true
	// reader refused: true
	// <nil>
}

// A program reads, decides, and writes, and nobody writes in between.
func ExampleUpgrade() {
	l := memory.New()
	defer l.Close()
	rw := rwlock.New(l)
	ctx := context.Background()

	reads, err := rw.Upgradeable().Lock(ctx, "config")
	if err != nil {
		return
	}
	fmt.Println("reads beside other readers")
	writes, err := rwlock.Upgrade(ctx, reads)
	if err != nil {
		_ = reads.Unlock(ctx)
		return
	}
	fmt.Println("writes alone")
	reads, err = rwlock.Downgrade(ctx, writes)
	if err != nil {
		return
	}
	fmt.Println("reads what it has written")
	_ = reads.Unlock(ctx)
	// Output:
	// reads beside other readers
	// writes alone
	// reads what it has written
}
