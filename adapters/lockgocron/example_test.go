package lockgocron_test

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/golocker/locker/adapters/lockgocron"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/memory"
)

func Example() {
	l := memory.New() // or config.Open with a URL, which all instances share
	defer l.Close()
	at := gocron.OneTimeJobStartDateTime(time.Now().Truncate(time.Second).Add(3 * time.Second))
	ran := make(chan struct{})
	report := func() {
		fmt.Println("the report")
		close(ran)
	}
	for range 3 { // instances
		ticks := lockgocron.New(l)
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(ticks))
		if err != nil {
			panic(err)
		}
		defer func() { _ = s.Shutdown() }()
		ticks.Attach(s)
		// CronJob, DailyJob, WeeklyJob and MonthlyJob are alike
		_, err = s.NewJob(gocron.OneTimeJob(at), gocron.NewTask(report), gocron.WithName("report"))
		if err != nil {
			panic(err)
		}
		s.Start()
	}
	<-ran
	// Output:
	// the report
}

func ExampleByElection() {
	l := memory.New() // or config.Open with a URL, which all instances share
	defer l.Close()
	candidate := election.New(l, "scheduler", election.Config{
		OnElected: func(ctx context.Context, _ election.Term) error {
			<-ctx.Done()
			return nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error)
	go func() { over <- candidate.Run(ctx) }()

	s, err := gocron.NewScheduler(gocron.WithDistributedElector(lockgocron.ByElection(candidate)))
	if err != nil {
		panic(err)
	}
	s.Start() // and so on

	fmt.Println(s.Shutdown())
	cancel() // when the jobs have ended
	fmt.Println(<-over)
	// Output:
	// <nil>
	// <nil>
}
