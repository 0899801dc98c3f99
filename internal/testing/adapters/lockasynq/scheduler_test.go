package lockasynq_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// schedule is that of the adapter's example.
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

func TestTheExampleShowsThisScheduler(t *testing.T) {
	var functions []string
	for _, path := range []string{"scheduler_test.go", "../../../../adapters/lockasynq/example_test.go"} {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, function, _ := strings.Cut(string(source), "\nfunc schedule(")
		function, _, _ = strings.Cut(function, "\n}\n")
		functions = append(functions, function)
	}
	if functions[0] == "" || functions[0] != functions[1] {
		t.Errorf("the functions differ:\n%s", strings.Join(functions, "\n"))
	}
}

// playScheduler is an instance that schedules a task per second in a queue: while it leads, or all the time if l is
// nil. It says "stands" at the beginning, and "leads" when a term begins. It ends when the test says so.
func playScheduler(me *instance.Self, l locker.Locker, redis asynq.RedisConnOpt, queue string) error {
	var last *asynq.Scheduler
	before := func() string {
		if last == nil {
			return "nothing"
		}
		return last.Start().Error() // of one that runs, or has been stopped
	}
	register := func(s *asynq.Scheduler) error {
		me.Say("leads after: %s", before())
		last = s
		_, err := s.Register("@every 1s", asynq.NewTask("task", nil), asynq.Queue(queue))
		return err
	}
	if l == nil {
		s := asynq.NewScheduler(redis, nil)
		return errors.Join(register(s), s.Run())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		me.Ask("stands")
		cancel()
	}()
	err := schedule(ctx, l, redis, register)
	me.Say("over after: %s", before())
	return err
}

// schedules waits until a task has been scheduled in a queue since the call.
func (w *tasks) schedules(queue string) {
	w.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	before := w.size(queue)
	for end := time.Now().Add(time.Minute); w.size(queue) == before; <-tick.C {
		if time.Now().After(end) {
			w.Fatalf("nothing is scheduled in the queue %s", queue)
		}
	}
}

// size returns how many tasks a queue has, which nobody processes.
func (w *tasks) size(queue string) int {
	w.Helper()
	all, err := w.inspector.Queues()
	if err != nil {
		w.Fatal(err)
	}
	if !slices.Contains(all, queue) {
		return 0
	}
	info, err := w.inspector.GetQueueInfo(queue)
	if err != nil {
		w.Fatal(err)
	}
	return info.Size
}

const stopped = "asynq: the scheduler has already been stopped"

// A second instance schedules nothing until the first one is killed. When its lock is taken away, its Scheduler stops,
// and another one begins in its next term.
func TestOneSchedulerRunsAtATime(t *testing.T) {
	onStores(t, func(w *tasks, locks string, _ storeurl.Server) {
		start := func(queue string) *instance.Process {
			return setup{Tasks: w.server.Addr(), Locks: locks, Queue: queue, Schedules: true}.start(w.T)
		}
		a := start("a")
		a.Says("leads after: nothing")
		w.schedules("a")
		b := start("b")
		b.Says("stands")
		w.schedules("a")
		w.schedules("a")
		if n := w.size("b"); n > 0 {
			w.Errorf("the second instance has scheduled %d tasks", n)
		}
		a.Kill()
		b.Says("leads after: nothing")
		w.schedules("b")

		takeAway(w.T, locks, "scheduler")
		if last := b.Says("leads after: "); last != stopped {
			w.Errorf("the Scheduler of the term before: %s", last)
		}
		w.schedules("b")
		b.GoOn()
		if last := b.Says("over after: "); last != stopped {
			w.Errorf("the Scheduler of the last term: %s", last)
		}
	})
}

// takeAway releases a lock of another process by force.
func takeAway(t *testing.T, locks, key string) {
	t.Helper()
	l, err := config.Open(t.Context(), locks)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	i, _ := locker.As[inspect.Inspector](l)
	if _, err := i.ForceRelease(t.Context(), key, ""); err != nil {
		t.Fatal(err)
	}
}

// This is what the election prevents.
func TestWithoutAnElectionAllInstancesSchedule(t *testing.T) {
	t.Parallel()
	w := newTasks(t)
	for _, queue := range []string{"a", "b"} {
		setup{Tasks: w.server.Addr(), Queue: queue, Schedules: true}.start(t)
	}
	w.schedules("a")
	w.schedules("b")
}
