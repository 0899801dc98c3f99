package lockasynq_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockasynq"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/memory"
)

// One export at a time.
func ExampleMiddleware() {
	l := memory.New() // or config.Open with a URL, which the whole fleet shares
	defer l.Close()
	lock := lockasynq.Middleware(l, func(task *asynq.Task) string { return task.Type() }) // for ServeMux.Use
	config := lockasynq.Config(asynq.Config{Concurrency: 10})                             // for asynq.NewServer

	// This is what a server does with it.
	ctx, task := context.Background(), asynq.NewTask("export", nil)
	elsewhere := lock(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	err := lock(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		fmt.Println("exports")
		err := elsewhere.ProcessTask(ctx, task)
		fmt.Println("another one is put off:", errors.Is(err, locker.ErrHeld), "and failed:", config.IsFailure(err))
		return nil
	})).ProcessTask(ctx, task)
	fmt.Println(err)
	// Output:
	// exports
	// another one is put off: true and failed: false
	// <nil>
}

// Each instance of a program calls this, and a Scheduler runs on one of them.
func schedule(
	ctx context.Context, l locker.Locker, redis asynq.RedisConnOpt, register func(s *asynq.Scheduler) error,
) error {
	return election.Run(ctx, l, "scheduler", election.Config{
		OnElected: func(ctx context.Context, _ election.Term) error {
			s := asynq.NewScheduler(redis, nil) // a new one for each term, because it starts only once
			defer s.Shutdown()                  // it returns when nothing is being enqueued any more
			if err := errors.Join(register(s), s.Start()); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	})
}

// A tick may be missed while the leader changes: for up to a TTL if the leader has crashed. It may be enqueued twice if
// the clocks differ, or if the leader stands still in the middle of it. The option asynq.Unique keeps the second task
// out while the first one is in a queue. If each tick has to be run at most once, let every instance enqueue by
// once.Do instead, with the tick that its schedule names.
func Example_scheduler() {
	ctx := context.Background() // a program takes signal.NotifyContext
	l := memory.New()           // or config.Open with a URL, which the whole fleet shares
	defer l.Close()
	_ = schedule(ctx, l, asynq.RedisClientOpt{Addr: "localhost:6379"}, func(s *asynq.Scheduler) error {
		_, err := s.Register("@every 1m", asynq.NewTask("report", nil))
		return err
	})
}
