package lockriver_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockriver"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) {
	instance.Main(play)
	redistest.Main(m)
}

// task are the arguments of the jobs of these tests.
type task struct {
	Name string `json:"name"` // unique in a test
	Lock string `json:"lock"` // the key of its lock
	// Loses lets the first attempt last until the context ends. Other attempts last until the test says so.
	Loses bool `json:"loses"`
	// Completes lets the first attempt be completed in a transaction of its own after that.
	Completes bool `json:"completes"`
}

func (task) Kind() string { return "task" }

func argsOf(job *rivertype.JobRow) (args task) {
	_ = json.Unmarshal(job.EncodedArgs, &args)
	return args
}

// setup is what an instance does.
type setup struct {
	Jobs    string `json:"jobs"`    // the URL of River's database
	Locks   string `json:"locks"`   // the URL of the locks; empty: there are none
	Permits int    `json:"permits"` // of each key; 0: a lock
	Queue   string `json:"queue"`   // the queue that it works, one job at a time
	Leads   bool   `json:"leads"`   // it rescues jobs
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

// play is an instance: a client of River, until it is killed. It says "works NAME" when a job begins, and "put off
// NAME" or "failed NAME" with an error when one is not worked or has failed.
func play(me *instance.Self, args []string) error {
	var s setup
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return err
	}
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, s.Jobs)
	if err != nil {
		return err
	}
	middleware := []rivertype.Middleware{river.WorkerMiddlewareFunc(
		func(ctx context.Context, job *rivertype.JobRow, work func(ctx context.Context) error) error {
			err := work(ctx)
			what := "failed"
			if errors.Is(err, &river.JobSnoozeError{}) {
				what = "put off"
			}
			if err != nil {
				me.Say("%s %s: %s", what, argsOf(job).Name, strings.ReplaceAll(err.Error(), "\n", "; "))
			}
			return err
		})}
	if s.Locks != "" {
		var l locker.Locker
		if l, err = config.Open(ctx, s.Locks, locker.TTL(ttl)); err != nil {
			return err
		}
		if s.Permits > 0 {
			l = semaphore.New(l, s.Permits)
		}
		key := func(job *rivertype.JobRow) string { return argsOf(job).Lock }
		middleware = append(middleware, lockriver.New(l, key, lockriver.Snooze(200*time.Millisecond)))
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{me: me, pool: pool})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:                 map[string]river.QueueConfig{s.Queue: {MaxWorkers: 1}},
		Workers:                workers,
		Middleware:             middleware,
		FetchPollInterval:      100 * time.Millisecond,
		LeaderElectionDisabled: !s.Leads,
		Logger:                 slog.New(slog.DiscardHandler),
		TestOnly:               true, // maintenance begins at once
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-client.Stopped()
	return nil
}

type worker struct {
	river.WorkerDefaults[task]
	me   *instance.Self
	pool *pgxpool.Pool
}

func (w *worker) Work(ctx context.Context, job *river.Job[task]) error {
	if !job.Args.Loses || job.Attempt > 1 {
		w.me.Ask("works %s", job.Args.Name)
		return nil
	}
	w.me.Say("works %s", job.Args.Name)
	<-ctx.Done()
	if !job.Args.Completes {
		return context.Cause(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

// NextRetry is sooner than by default.
func (*worker) NextRetry(*river.Job[task]) time.Time { return time.Now().Add(100 * time.Millisecond) }

// jobs is River's database, as a test sees it.
type jobs struct {
	*testing.T
	url    string
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	ids    map[string]int64
}

// newJobs starts a database with River's tables.
func newJobs(t *testing.T) *jobs {
	t.Helper()
	j := &jobs{T: t, url: pgtest.Start(t).URL("postgres"), ids: map[string]int64{}}
	var err error
	if j.pool, err = pgxpool.New(t.Context(), j.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.pool.Close)
	migrator, err := rivermigrate.New(riverpgxv5.New(j.pool), nil)
	if err == nil {
		_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	}
	if err == nil {
		j.client, err = river.NewClient(riverpgxv5.New(j.pool), &river.Config{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// insert inserts a job into a queue.
func (j *jobs) insert(queue string, args task, opts river.InsertOpts) {
	j.Helper()
	opts.Queue = queue
	inserted, err := j.client.Insert(j.Context(), args, &opts)
	if err != nil {
		j.Fatal(err)
	}
	j.ids[args.Name] = inserted.Job.ID
}

// completes waits until a job is completed, and returns its row.
func (j *jobs) completes(name string) *rivertype.JobRow {
	j.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		row, err := j.client.JobGet(j.Context(), j.ids[name])
		if err != nil {
			j.Fatal(err)
		}
		if row.State == rivertype.JobStateCompleted {
			return row
		}
		if time.Now().After(end) {
			j.Fatalf("job %s is %s", name, row.State)
		}
	}
}

// age makes a job that is worked look as if it had begun two hours ago, so that River rescues it.
func (j *jobs) age(name string) {
	j.Helper()
	const back = "UPDATE river_job SET attempted_at = attempted_at - interval '2 hours' " +
		"WHERE id = $1 AND state = 'running'"
	_, err := j.pool.Exec(j.Context(), back, j.ids[name])
	if err != nil {
		j.Fatal(err)
	}
}

// snoozes returns how often a job was snoozed.
func snoozes(row *rivertype.JobRow) (n int) {
	var metadata map[string]json.RawMessage
	_ = json.Unmarshal(row.Metadata, &metadata)
	n, _ = strconv.Atoi(string(metadata["snoozes"]))
	return n
}
