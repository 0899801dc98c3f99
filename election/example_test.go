package election_test

import (
	"context"
	"fmt"

	"github.com/golocker/locker/election"
	"github.com/golocker/locker/memory"
)

func ExampleRun() {
	ctx, cancel := context.WithCancel(context.Background()) // a program takes signal.NotifyContext
	l := memory.New()                                       // or config.Open with a URL
	defer l.Close()

	err := election.Run(ctx, l, "shard-7", election.Config{
		Identity: "web-7",
		OnElected: func(ctx context.Context, term election.Term) error {
			for leader := range election.Observe(ctx, l, "shard-7") { // any process may do that
				fmt.Println("leads:", leader.Identity)
				break
			}
			cancel()     // as on SIGTERM
			<-ctx.Done() // until here, nobody else leads
			return nil
		},
		OnDemoted: func(_ election.Term, cause error) { fmt.Println("demoted:", cause) },
	})
	fmt.Println("run:", err)
	// Output:
	// leads: web-7
	// demoted: context canceled
	// run: <nil>
}
