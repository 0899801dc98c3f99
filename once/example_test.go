package once_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/once"
)

func ExampleDo() {
	l := memory.New() // or config.Open with a URL, which all instances share
	defer l.Close()
	ctx := context.Background()
	tick := time.Now().Round(time.Second) // the scheduler knows it

	for range 2 { // instances
		outcome, err := once.Do(ctx, l, "report", tick, func(context.Context) error {
			fmt.Println("the report")
			return nil
		})
		fmt.Println(outcome, err)
	}

	hourAgo := tick.Add(-time.Hour) // of an instance that was suspended
	outcome, err := once.Do(ctx, l, "report", hourAgo, func(context.Context) error { return nil })
	fmt.Println(outcome, errors.Is(err, once.ErrTooLate))
	// Output:
	// the report
	// ran <nil>
	// elsewhere <nil>
	// too late true
}
