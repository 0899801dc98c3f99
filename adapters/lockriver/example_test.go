package lockriver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockriver"
	"github.com/golocker/locker/memory"
)

type ExportArgs struct {
	Customer int `json:"customer"`
}

func (ExportArgs) Kind() string { return "export" }

// One export of a customer at a time.
func ExampleNew() {
	l := memory.New() // or config.Open with a URL, which the whole fleet shares
	defer l.Close()
	lock := lockriver.New(l, func(job *rivertype.JobRow) string {
		var args ExportArgs
		switch {
		case job.Kind != args.Kind():
			return "" // no lock
		case json.Unmarshal(job.EncodedArgs, &args) != nil:
			return "export"
		}
		return fmt.Sprint("export:", args.Customer)
	})
	_ = river.Config{Middleware: []rivertype.Middleware{lock}} // for river.NewClient, which calls it as follows

	ctx := context.Background()
	job := &rivertype.JobRow{Kind: "export", EncodedArgs: []byte(`{"customer": 7}`)}
	err := lock.Work(ctx, job, func(context.Context) error {
		fmt.Println("exports")
		err := lock.Work(ctx, job, func(context.Context) error { return nil }) // in another process
		fmt.Println("another one is snoozed:", errors.Is(err, &river.JobSnoozeError{}), errors.Is(err, locker.ErrHeld))
		return nil
	})
	fmt.Println(err)
	// Output:
	// exports
	// another one is snoozed: true true
	// <nil>
}
