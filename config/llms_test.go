package config_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// The code of llms.txt and AGENTS.md is in this file: TestPagesShowTheExamples.

func program(ctx context.Context) error {
	l, err := config.Open(ctx, os.Getenv("LOCKER_URL")) // such as redis://host:6379?ttl=10s
	if err != nil {
		return err // the URL is malformed; a server that is down is no error here
	}
	defer l.Close()
	return settle(ctx, l, "42", func(context.Context) error { return nil })
}

func settle(ctx context.Context, l locker.Locker, id string, pay func(ctx context.Context) error) error {
	return locker.Do(ctx, l, "invoice:"+id, pay) // the ctx of pay ends if the lock is lost
}

func saveDocument(ctx context.Context, db *sql.DB, lease locker.Lease, id, text string) error {
	fences := fence.SQL{Dialect: fence.PostgreSQL} // fences.Create() makes its table
	return fences.InTx(ctx, db, fence.Of(lease), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE doc SET text = $1 WHERE id = $2`, text, id)
		return err
	})
}

func cleanUp(ctx context.Context, l locker.Locker, job func(ctx context.Context) error) error {
	err := locker.TryDo(ctx, l, "clean-up", job)
	if errors.Is(err, locker.ErrHeld) {
		return nil // another process is at it
	}
	return err
}

func whatToDo(err error) string { // about an error of locker.Do
	switch {
	case errors.Is(err, locker.ErrLost):
		return "look at what was done: somebody else may have worked beside it"
	case errors.Is(err, locker.ErrReleaseUnknown):
		return "nothing: the function has returned, and the lock ends by itself"
	case errors.Is(err, locker.ErrUnavailable):
		return "call Do again later: the function was not called"
	default:
		return "it is the error of the function, the end of the context, or a mistake such as ErrInvalid"
	}
}

func exportAll(ctx context.Context, l locker.Locker, job func(ctx context.Context) error) error {
	return locker.Do(ctx, l, "export", job, locker.TTL(10*time.Second), locker.MaxHold(time.Hour))
}

func lockSoon(ctx context.Context, l locker.Locker, key string) (locker.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel() // the lease outlives this context
	return l.Lock(ctx, key)
}

func move(ctx context.Context, l locker.Locker, from, to string, book func(account string, token uint64) error) error {
	lease, err := locker.LockAll(ctx, l, []string{from, to}) // and not one Lock within another
	if err != nil {
		return err
	}
	defer lease.Unlock(ctx)
	return errors.Join(book(from, lease.FenceOf(from)), book(to, lease.FenceOf(to)))
}

func publish(ctx context.Context, l locker.Locker, send func(ctx context.Context) error) error {
	return locker.Do(ctx, l, "publish", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		if err := locker.Verify(ctx, lease); err != nil {
			return err // somebody else may have the lock
		}
		return send(ctx) // at once: a pause before it is what Verify cannot see
	})
}

func others(ctx context.Context, l locker.Locker, tick time.Time, f func(context.Context) error) error {
	three := locker.Do(ctx, semaphore.New(l, 3), "imports", f)    // at most three at a time
	reader := locker.Do(ctx, rwlock.New(l).Shared(), "schema", f) // beside other readers
	_, job := once.Do(ctx, l, "report", tick, f)                  // once per tick of a schedule
	lead := func(ctx context.Context, _ election.Term) error { return f(ctx) }
	return errors.Join(three, reader, job, election.Run(ctx, l, "shard-7", election.Config{OnElected: lead}))
}

var _ = saveDocument // needs a database

func TestRulesOfThePageHold(t *testing.T) {
	t.Setenv("LOCKER_URL", "memory:")
	ctx, end := context.WithCancel(t.Context())
	l := memory.New()
	defer l.Close()
	calls := 0
	work := func(context.Context) error { calls++; return nil }
	lease, err := lockSoon(ctx, l, "soon")
	for _, err := range []error{
		err, program(ctx), settle(ctx, l, "1", work), cleanUp(ctx, l, work), exportAll(ctx, l, work), publish(ctx, l, work),
		move(ctx, l, "a", "b", func(_ string, token uint64) error {
			if token == 0 {
				t.Error("no token")
			}
			return nil
		}),
		cleanUp(ctx, l, func(ctx context.Context) error { return cleanUp(ctx, l, work) }), // the inner one skips
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if lease.Err() != nil || calls != 4 {
		t.Errorf("the lease: %v; %d calls, want 4", lease.Err(), calls)
	}
	if err := others(ctx, l, time.Now().Truncate(time.Second), func(context.Context) error {
		if calls++; calls == 8 { // as a leader
			end()
		}
		return nil
	}); calls != 8 || err != nil {
		t.Errorf("%d calls, want 8: %v", calls, err)
	}
	lost := locker.Do(t.Context(), l, "k", func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}, locker.MaxHold(20*time.Millisecond))
	if text := whatToDo(lost); text[:4] != "look" {
		t.Errorf("%v: %s", lost, text)
	}
}

func TestLeasesAreRenewedForAnHour(t *testing.T) {
	virtual.Test(t, func(t *testing.T) { // time passes at once in here
		l := memory.New()
		defer l.Close()
		lease, err := l.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
