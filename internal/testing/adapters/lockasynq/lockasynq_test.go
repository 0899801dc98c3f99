package lockasynq_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// Two processes have a task with the same key. The second task waits outside of its worker, which processes another
// one, and none of its retries is used up when its turn comes.
func TestOneTaskOfAKeyIsProcessedAtATime(t *testing.T) {
	onStores(t, func(w *tasks, locks string, _ storeurl.Server) {
		w.enqueue("a", payload{Name: "first", Lock: "customer:7"})
		a := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "a"}.start(w.T)
		a.Says("works first")

		w.enqueue("b", payload{Name: "second", Lock: "customer:7"}, asynq.MaxRetry(1))
		b := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "b"}.start(w.T)
		if why := b.Says("put off second: "); !strings.Contains(why, "held by") {
			w.Errorf("the second task is put off: %s", why)
		}
		w.enqueue("b", payload{Name: "other", Lock: "customer:8"})
		w.enqueue("b", payload{Name: "unlocked"})
		b.Says("works other")
		b.GoOn()
		b.Says("works unlocked")
		b.GoOn()
		b.Says("put off second: ")

		a.GoOn()
		b.Says("works second")
		b.GoOn()
		if info := w.is(asynq.TaskStateCompleted, "b", "second"); info.Retried != 0 {
			w.Errorf("the second task was retried %d times", info.Retried)
		}
		w.is(asynq.TaskStateCompleted, "a", "first")
	})
}

// This is what the middleware prevents.
func TestWithoutTheMiddlewareTwoTasksAreProcessedAtATime(t *testing.T) {
	t.Parallel()
	w := newTasks(t)
	w.enqueue("a", payload{Name: "first", Lock: "customer:7"})
	setup{Tasks: w.server.Addr(), Queue: "a"}.start(t).Says("works first")
	w.enqueue("b", payload{Name: "second", Lock: "customer:7", Ignores: true}, asynq.Timeout(time.Second))
	b := setup{Tasks: w.server.Addr(), Queue: "b"}.start(t)
	b.Says("works second")
	b.Says("works again second") // that task itself is processed twice
}

// This is what Config prevents.
func TestWithoutTheConfigTasksUseUpTheirRetries(t *testing.T) {
	onStores(t, func(w *tasks, locks string, _ storeurl.Server) {
		w.enqueue("a", payload{Name: "first", Lock: "customer:7"})
		setup{Tasks: w.server.Addr(), Locks: locks, Queue: "a"}.start(w.T).Says("works first")
		w.enqueue("b", payload{Name: "second", Lock: "customer:7"}, asynq.MaxRetry(3))
		b := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "b", Plain: true}.start(w.T)
		for range 3 {
			b.Says("put off second: ")
		}
		w.until("b", "second", func(info *asynq.TaskInfo) bool { return info.Retried == 3 })
	})
}

// asynq would archive a task that is put off on its last attempt.
func TestTheLastAttemptWaitsForTheLock(t *testing.T) {
	onStores(t, func(w *tasks, locks string, _ storeurl.Server) {
		w.enqueue("a", payload{Name: "first", Lock: "customer:7"})
		a := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "a"}.start(w.T)
		a.Says("works first")

		w.enqueue("b", payload{Name: "second", Lock: "customer:7"}, asynq.MaxRetry(0))
		b := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "b"}.start(w.T)
		w.is(asynq.TaskStateActive, "b", "second")
		a.GoOn()
		b.Says("works second")
		b.GoOn()
		w.is(asynq.TaskStateCompleted, "b", "second")

		w.enqueue("a", payload{Name: "third", Lock: "customer:7"})
		a.Says("works third")
		w.enqueue("b", payload{Name: "fourth", Lock: "customer:7"}, asynq.MaxRetry(0), asynq.Timeout(time.Second))
		if why := b.Says("failed fourth: "); !strings.Contains(why, context.DeadlineExceeded.Error()) {
			w.Errorf("the fourth task has failed: %s", why)
		}
		w.is(asynq.TaskStateArchived, "b", "fourth")
	})
}

func TestASemaphoreLetsSeveralTasksBeProcessed(t *testing.T) {
	onStores(t, func(w *tasks, locks string, _ storeurl.Server) {
		start := func(name string) setup {
			w.enqueue(name, payload{Name: name, Lock: "exports"})
			return setup{Tasks: w.server.Addr(), Locks: locks, Permits: 2, Queue: name}
		}
		a, b := start("a").start(w.T), start("b").start(w.T)
		a.Says("works a")
		b.Says("works b")
		c := start("c").start(w.T)
		if why := c.Says("put off c: "); !strings.Contains(why, "all 2 permits are held") {
			w.Errorf("the third task is put off: %s", why)
		}
		b.GoOn()
		c.Says("works c")
	})
}

// asynq retries a task whose timeout is over, although its handler still runs.
func TestATaskThatIgnoresItsTimeoutIsNotProcessedTwiceAtATime(t *testing.T) {
	onStores(t, func(w *tasks, locks string, _ storeurl.Server) {
		w.enqueue("a", payload{Name: "first", Lock: "customer:7", Ignores: true}, asynq.Timeout(time.Second))
		a := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "a"}.start(w.T)
		a.Says("works first")
		a.Says("failed first: " + context.DeadlineExceeded.Error())
		a.Says("put off first: ")
		a.GoOn()
		a.Says("works again first")
		w.is(asynq.TaskStateCompleted, "a", "first")
	})
}

func TestATaskOfAKilledProcessIsProcessedElsewhere(t *testing.T) {
	onStores(t, func(w *tasks, locks string, _ storeurl.Server) {
		w.enqueue("a", payload{Name: "first", Lock: "customer:7"})
		a := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "a"}.start(w.T)
		a.Says("works first")
		a.Kill()
		w.age("a", "first")
		b := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "a"}.start(w.T)
		b.Says("works first") // when the lock has ended
		b.GoOn()
		if info := w.is(asynq.TaskStateCompleted, "a", "first"); info.Retried != 1 {
			w.Errorf("the task was retried %d times", info.Retried)
		}
	})
}

// The store of the locks is down for longer than a lease. The task in progress ends and fails. It and others are put
// off until the store is back.
func TestAnOutageOfTheLocksDelaysTasks(t *testing.T) {
	onStores(t, func(w *tasks, locks string, store storeurl.Server) {
		w.enqueue("a", payload{Name: "first", Lock: "customer:7", Loses: true})
		a := setup{Tasks: w.server.Addr(), Locks: locks, Queue: "a"}.start(w.T)
		a.Says("works first")

		store.Kill()
		if why := a.Says("failed first: "); !strings.Contains(why, "lock lost: expired") {
			w.Errorf("the task has failed: %s", why)
		}
		w.enqueue("a", payload{Name: "second", Lock: "customer:8"})
		for _, task := range []string{"first", "second"} {
			if why := a.Says("put off " + task + ": "); !strings.Contains(why, locker.ErrUnavailable.Error()) {
				w.Errorf("task %s is put off: %s", task, why)
			}
		}
		store.Restart()
		a.Says("works ")
		a.GoOn()
		a.Says("works ")
		a.GoOn()
		for task, want := range map[string]int{"first": 1, "second": 0} {
			if info := w.is(asynq.TaskStateCompleted, "a", task); info.Retried != want {
				w.Errorf("task %s was retried %d times, want %d", task, info.Retried, want)
			}
		}
	})
}
