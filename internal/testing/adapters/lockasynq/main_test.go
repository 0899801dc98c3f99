package lockasynq_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockasynq"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/storeurl"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) {
	instance.Main(play)
	redistest.Main(m)
}

// payload is that of the tasks of these tests.
type payload struct {
	Name    string `json:"name"`    // unique in a test
	Lock    string `json:"lock"`    // the key of its lock
	Loses   bool   `json:"loses"`   // the first attempt lasts until its context ends
	Ignores bool   `json:"ignores"` // other attempts than the first one end by themselves
}

func payloadOf(task *asynq.Task) (p payload) {
	_ = json.Unmarshal(task.Payload(), &p)
	return p
}

// setup is what an instance does.
type setup struct {
	Tasks     string `json:"tasks"`     // the address of asynq's Redis
	Locks     string `json:"locks"`     // the URL of the locks; empty: there are none
	Permits   int    `json:"permits"`   // of each key; 0: a lock
	Queue     string `json:"queue"`     // the queue that it serves, one task at a time, or in which it schedules tasks
	Plain     bool   `json:"plain"`     // it does without lockasynq.Config
	Schedules bool   `json:"schedules"` // instead of serving, it schedules a task per second while it leads
}

// start starts an instance.
func (s setup) start(t *testing.T) *instance.Process {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return instance.Start(t, string(text))
}

// ttl is short, and tolerates that a process stands still for two seconds.
const ttl = 5 * time.Second

// play is an instance: a server of asynq, until it is killed. It says "works NAME" when a task begins, and "put off
// NAME" or "failed NAME" with an error when one is not processed or has failed.
func play(me *instance.Self, args []string) error {
	var s setup
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return err
	}
	redis := asynq.RedisClientOpt{Addr: s.Tasks}
	var l locker.Locker
	if s.Locks != "" {
		opened, err := config.Open(context.Background(), s.Locks, locker.TTL(ttl))
		if err != nil {
			return err
		}
		l = opened
	}
	if s.Schedules {
		return playScheduler(me, l, redis, s.Queue)
	}
	if s.Permits > 0 {
		l = semaphore.New(l, s.Permits)
	}
	mux := asynq.NewServeMux()
	if l != nil {
		key := func(task *asynq.Task) string { return payloadOf(task).Lock }
		mux.Use(lockasynq.Middleware(l, key, lockasynq.Delay(200*time.Millisecond)))
	}
	mux.HandleFunc("task", func(ctx context.Context, task *asynq.Task) error {
		p := payloadOf(task)
		retried, _ := asynq.GetRetryCount(ctx)
		switch {
		case p.Loses && retried == 0:
			me.Say("works %s", p.Name)
			<-ctx.Done()
			return context.Cause(ctx)
		case p.Ignores && retried > 0:
			me.Say("works again %s", p.Name)
		default:
			me.Ask("works %s", p.Name)
		}
		return nil
	})
	c := asynq.Config{
		Concurrency:              1,
		Queues:                   map[string]int{s.Queue: 1},
		TaskCheckInterval:        100 * time.Millisecond,
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 100 * time.Millisecond },
		LogLevel:                 asynq.FatalLevel,
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, task *asynq.Task, err error) {
			what := "failed"
			if errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrUnavailable) {
				what = "put off"
			}
			me.Say("%s %s: %s", what, payloadOf(task).Name, strings.ReplaceAll(err.Error(), "\n", "; "))
		}),
	}
	if !s.Plain {
		c = lockasynq.Config(c)
	}
	return asynq.NewServer(redis, c).Run(mux)
}

// tasks is asynq's Redis, as a test sees it.
type tasks struct {
	*testing.T
	server    *redistest.Server
	client    *asynq.Client
	inspector *asynq.Inspector
}

func newTasks(t *testing.T) *tasks {
	t.Helper()
	s := redistest.Start(t)
	redis := asynq.RedisClientOpt{Addr: s.Addr()}
	w := &tasks{t, s, asynq.NewClient(redis), asynq.NewInspector(redis)}
	t.Cleanup(func() {
		_ = w.client.Close()
		_ = w.inspector.Close()
	})
	return w
}

// enqueue enqueues a task.
func (w *tasks) enqueue(queue string, p payload, opts ...asynq.Option) {
	w.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		w.Fatal(err)
	}
	all := append([]asynq.Option{asynq.Queue(queue), asynq.TaskID(p.Name), asynq.Retention(time.Hour)}, opts...)
	if _, err := w.client.Enqueue(asynq.NewTask("task", text), all...); err != nil {
		w.Fatal(err)
	}
}

// is waits until a task is in a state, and returns what asynq knows of it.
func (w *tasks) is(want asynq.TaskState, queue, name string) *asynq.TaskInfo {
	w.Helper()
	return w.until(queue, name, func(info *asynq.TaskInfo) bool { return info.State == want })
}

// until waits until done returns true. A task that is archived stays so.
func (w *tasks) until(queue, name string, done func(info *asynq.TaskInfo) bool) *asynq.TaskInfo {
	w.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		info, err := w.inspector.GetTaskInfo(queue, name)
		if err != nil {
			w.Fatal(err)
		}
		if done(info) {
			return info
		}
		if info.State == asynq.TaskStateArchived || time.Now().After(end) {
			w.Fatalf("task %s is %v, was retried %d times, and has the last error: %s", name, info.State, info.Retried,
				info.LastErr)
		}
	}
}

// age ends asynq's lease of a task, as if a minute had passed since its process was last heard of.
func (w *tasks) age(queue, name string) {
	w.Helper()
	if _, err := w.server.Do("ZADD", "asynq:{"+queue+"}:lease", time.Now().Add(-time.Minute).Unix(), name); err != nil {
		w.Fatal(err)
	}
}

// onStores runs f for each kind of store, beside each other.
func onStores(t *testing.T, f func(w *tasks, locks string, store storeurl.Server)) {
	t.Parallel()
	for name, start := range adapters.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTasks(t)
			locks, store := start(t)
			f(w, locks, store)
		})
	}
}
