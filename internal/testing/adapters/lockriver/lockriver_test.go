package lockriver_test

import (
	"strings"
	"testing"

	"github.com/riverqueue/river"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// onStores runs f for each kind of store, beside each other.
func onStores(t *testing.T, f func(j *jobs, locks string, store storeurl.Server)) {
	t.Parallel()
	for name, start := range adapters.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJobs(t)
			locks, store := start(t)
			f(j, locks, store)
		})
	}
}

// Two processes have a job with the same key. The second job waits outside of its worker, which works another one, and
// has lost none of its attempts when its turn comes.
func TestOneJobOfAKeyIsWorkedAtATime(t *testing.T) {
	onStores(t, func(j *jobs, locks string, _ storeurl.Server) {
		j.insert("a", task{Name: "first", Lock: "customer:7"}, river.InsertOpts{MaxAttempts: 1})
		a := setup{Jobs: j.url, Locks: locks, Queue: "a"}.start(j.T)
		a.Says("works first")

		j.insert("b", task{Name: "second", Lock: "customer:7"}, river.InsertOpts{MaxAttempts: 1})
		b := setup{Jobs: j.url, Locks: locks, Queue: "b"}.start(j.T)
		if why := b.Says("put off second: "); !strings.Contains(why, "held by") {
			j.Errorf("the second job is put off: %s", why)
		}
		j.insert("b", task{Name: "other", Lock: "customer:8"}, river.InsertOpts{})
		j.insert("b", task{Name: "unlocked"}, river.InsertOpts{})
		b.Says("works other")
		b.GoOn()
		b.Says("works unlocked")
		b.GoOn()
		b.Says("put off second: ")

		a.GoOn()
		b.Says("works second")
		b.GoOn()
		row := j.completes("second")
		if row.Attempt != 1 || len(row.Errors) > 0 || snoozes(row) < 2 {
			j.Errorf("attempt %d, errors %v, snoozed %d times", row.Attempt, row.Errors, snoozes(row))
		}
		if row := j.completes("first"); row.Attempt != 1 || snoozes(row) > 0 {
			j.Errorf("attempt %d, snoozed %d times", row.Attempt, snoozes(row))
		}
	})
}

// This is what the middleware prevents.
func TestWithoutTheMiddlewareTwoJobsAreWorkedAtATime(t *testing.T) {
	t.Parallel()
	j := newJobs(t)
	j.insert("a", task{Name: "first", Lock: "customer:7"}, river.InsertOpts{})
	setup{Jobs: j.url, Queue: "a"}.start(t).Says("works first")
	j.insert("b", task{Name: "second", Lock: "customer:7"}, river.InsertOpts{})
	setup{Jobs: j.url, Queue: "b"}.start(t).Says("works second")
	j.age("first")
	setup{Jobs: j.url, Queue: "a", Leads: true}.start(t).Says("works first") // that job itself runs twice
}

func TestASemaphoreLetsSeveralJobsBeWorked(t *testing.T) {
	onStores(t, func(j *jobs, locks string, _ storeurl.Server) {
		start := func(name string) setup {
			j.insert(name, task{Name: name, Lock: "exports"}, river.InsertOpts{})
			return setup{Jobs: j.url, Locks: locks, Permits: 2, Queue: name}
		}
		a, b := start("a").start(j.T), start("b").start(j.T)
		a.Says("works a")
		b.Says("works b")
		c := start("c").start(j.T)
		if why := c.Says("put off c: "); !strings.Contains(why, "all 2 permits are held") {
			j.Errorf("the third job is put off: %s", why)
		}
		b.GoOn()
		c.Says("works c")
	})
}

// River rescues a job that has taken too long, although it is still worked. It is not worked twice at a time. When the
// process is killed, the job goes on elsewhere.
func TestAJobOfAKilledProcessIsWorkedElsewhere(t *testing.T) {
	onStores(t, func(j *jobs, locks string, _ storeurl.Server) {
		j.insert("a", task{Name: "first", Lock: "customer:7"}, river.InsertOpts{})
		a := setup{Jobs: j.url, Locks: locks, Queue: "a"}.start(j.T)
		a.Says("works first")

		j.age("first")
		b := setup{Jobs: j.url, Locks: locks, Queue: "a", Leads: true}.start(j.T)
		if why := b.Says("put off first: "); !strings.Contains(why, "held by") {
			j.Errorf("the job that was rescued is put off: %s", why)
		}
		a.Kill()
		b.Says("works first")
		b.GoOn()
		if row := j.completes("first"); row.Attempt != 2 || len(row.Errors) != 1 {
			j.Errorf("attempt %d, errors %v", row.Attempt, row.Errors) // the one that was rescued is counted
		}
	})
}

// The store of the locks is down for longer than a lease. The job in progress ends and fails. It and others are put off
// until the store is back.
func TestAnOutageOfTheLocksDelaysJobs(t *testing.T) {
	onStores(t, func(j *jobs, locks string, store storeurl.Server) {
		j.insert("a", task{Name: "first", Lock: "customer:7", Loses: true}, river.InsertOpts{MaxAttempts: 2})
		a := setup{Jobs: j.url, Locks: locks, Queue: "a"}.start(j.T)
		a.Says("works first")

		store.Kill()
		if why := a.Says("failed first: "); !strings.Contains(why, "lock lost: expired") {
			j.Errorf("the job has failed: %s", why)
		}
		j.insert("a", task{Name: "second", Lock: "customer:8"}, river.InsertOpts{MaxAttempts: 1})
		for _, job := range []string{"first", "second"} {
			if why := a.Says("put off " + job + ": "); !strings.Contains(why, locker.ErrUnavailable.Error()) {
				j.Errorf("job %s is put off: %s", job, why)
			}
		}
		store.Restart()
		a.Says("works ")
		a.GoOn()
		a.Says("works ")
		a.GoOn()

		row := j.completes("first")
		if row.Attempt != 2 || len(row.Errors) != 1 || !strings.Contains(row.Errors[0].Error, "lock lost") {
			j.Errorf("attempt %d, errors %v", row.Attempt, row.Errors)
		}
		if row := j.completes("second"); row.Attempt != 1 || len(row.Errors) > 0 || snoozes(row) == 0 {
			j.Errorf("attempt %d, errors %v, snoozed %d times", row.Attempt, row.Errors, snoozes(row))
		}
	})
}

// A job that is complete in its own transaction is not worked again.
func TestALossDoesNotRepeatACompleteJob(t *testing.T) {
	t.Parallel()
	j := newJobs(t)
	locks, store := adapters.Servers()["Redis"](t)
	j.insert("a", task{Name: "first", Lock: "customer:7", Loses: true, Completes: true}, river.InsertOpts{})
	a := setup{Jobs: j.url, Locks: locks, Queue: "a"}.start(t)
	a.Says("works first")
	store.Restart() // which forgets the lock
	if why := a.Says("failed first: "); !strings.Contains(why, "lock lost") {
		t.Errorf("the job has failed: %s", why)
	}
	if row := j.completes("first"); row.Attempt != 1 || len(row.Errors) > 0 {
		t.Errorf("attempt %d, errors %v", row.Attempt, row.Errors)
	}
}
