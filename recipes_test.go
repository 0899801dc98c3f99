package locker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// The programs of these pages are functions of the tests.
func TestPagesShowTheExamples(t *testing.T) {
	text := func(file string) string {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, of := range []struct {
		pages           []string
		source          string
		programs, lines int
	}{
		{[]string{"docs/recipes.md", "docs/what-it-is-not.md"}, "recipes_test.go", 9, 12},
		{[]string{"llms.txt", "AGENTS.md"}, "config/llms_test.go", 11, 14},
	} {
		programs, source := 0, text(of.source)
		for _, page := range of.pages {
			for _, block := range strings.Split(text(page), "```go\n")[1:] {
				programs++
				code, _, _ := strings.Cut(block, "```")
				if !strings.Contains(source, code) {
					t.Errorf("%s: %s has no\n%s", page, of.source, code)
				}
				if n := strings.Count(code, "\n"); n > of.lines {
					t.Errorf("%s: %d lines are more than about ten:\n%s", page, n, code)
				}
			}
		}
		if programs != of.programs {
			t.Errorf("%q: %d programs, want %d", of.pages, programs, of.programs)
		}
	}
}

func onTick(ctx context.Context, l locker.Locker, tick time.Time, job func(context.Context) error) error {
	outcome, err := once.Do(ctx, l, "report", tick, job) // tick is the time that the schedule names
	if outcome == once.Elsewhere {
		fmt.Println("another instance runs it or has run it")
	}
	return err
}

func Example_cron() {
	l := memory.New()
	defer l.Close()
	tick := time.Now().Round(time.Second)
	for range 2 { // machines
		fmt.Println(onTick(context.Background(), l, tick, func(context.Context) error {
			fmt.Println("the report")
			return nil
		}))
	}
	// Output:
	// the report
	// <nil>
	// another instance runs it or has run it
	// <nil>
}

type cache interface {
	Has(key string) bool
	Put(key, value string)
}

func cached(ctx context.Context, l locker.Locker, c cache, key string, compute func(context.Context) string) error {
	if c.Has(key) {
		return nil
	}
	return locker.Do(ctx, l, "compute:"+key, func(ctx context.Context) error {
		if !c.Has(key) { // nobody has computed it while this caller waited
			c.Put(key, compute(ctx))
		}
		return ctx.Err()
	})
}

type mapCache map[string]string

func (m mapCache) Has(key string) bool   { return m[key] != "" }
func (m mapCache) Put(key, value string) { m[key] = value }

func Example_singleflight() {
	l := memory.New()
	defer l.Close()
	c := mapCache{}
	for range 2 {
		err := cached(context.Background(), l, c, "answer", func(context.Context) string {
			fmt.Println("computing")
			return "42"
		})
		fmt.Println(c["answer"], err)
	}
	// Output:
	// computing
	// 42 <nil>
	// 42 <nil>
}

type ledger interface {
	// Book refuses an entry if it has seen a greater token for the account.
	Book(account string, amount int, token uint64) error
}

func transfer(ctx context.Context, l locker.Locker, books ledger, from, to string, amount int) error {
	lease, err := locker.LockAll(ctx, l, []string{from, to})
	if err != nil {
		return err
	}
	defer lease.Unlock(ctx)
	if err := books.Book(from, -amount, lease.FenceOf(from)); err != nil {
		return err
	}
	return books.Book(to, amount, lease.FenceOf(to))
}

// mapLedger is a ledger that compares tokens.
type mapLedger map[string]struct {
	balance int
	token   uint64
}

func (m mapLedger) Book(account string, amount int, token uint64) error {
	a := m[account]
	if token < a.token {
		return fmt.Errorf("token %d is older than %d", token, a.token)
	}
	a.balance, a.token = a.balance+amount, token
	m[account] = a
	return nil
}

func Example_payments() {
	l := memory.New()
	defer l.Close()
	books := mapLedger{}
	fmt.Println(transfer(context.Background(), l, books, "anna", "bert", 10))
	fmt.Println(transfer(context.Background(), l, books, "bert", "anna", 4))
	fmt.Println(books["anna"].balance, books["bert"].balance)
	// Output:
	// <nil>
	// <nil>
	// -6 6
}

type database interface {
	Version(ctx context.Context) (int, error)
	Migrate(ctx context.Context, to int) error
}

func migrate(ctx context.Context, l locker.Locker, db database, latest int) error {
	return locker.Do(ctx, l, "migrations", func(ctx context.Context) error {
		v, err := db.Version(ctx)
		for ; err == nil && v < latest; v++ {
			if err = ctx.Err(); err == nil { // it ends when the lock is lost
				err = db.Migrate(ctx, v+1)
			}
		}
		return err
	}, locker.TTL(time.Minute))
}

type fakeDatabase struct{ version int }

func (d *fakeDatabase) Version(context.Context) (int, error) { return d.version, nil }

func (d *fakeDatabase) Migrate(_ context.Context, to int) error {
	fmt.Println("migrating to", to)
	d.version = to
	return nil
}

func Example_migrations() {
	l := memory.New()
	defer l.Close()
	db := &fakeDatabase{version: 1}
	for range 2 { // instances that start
		fmt.Println(migrate(context.Background(), l, db, 3))
	}
	// Output:
	// migrating to 2
	// migrating to 3
	// <nil>
	// <nil>
}

func sweep(ctx context.Context, l locker.Locker, shards int, work func(ctx context.Context, shard int) error) error {
	var errs error
	for shard := range shards {
		err := locker.TryDo(ctx, l, fmt.Sprint("shard:", shard), func(ctx context.Context) error {
			return work(ctx, shard) // ctx ends when the lock is lost, and has the lease for its token
		})
		if !errors.Is(err, locker.ErrHeld) { // another worker has a shard that is held
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

func Example_shards() {
	l := memory.New()
	defer l.Close()
	ctx := context.Background()
	other, err := l.TryLock(ctx, "shard:1") // another worker
	fmt.Println(err)
	fmt.Println(sweep(ctx, l, 3, func(_ context.Context, shard int) error {
		fmt.Println("working on", shard)
		return nil
	}))
	fmt.Println(other.Unlock(ctx))
	// Output:
	// <nil>
	// working on 0
	// working on 2
	// <nil>
	// <nil>
}

func exportReport(ctx context.Context, l locker.Locker, export func(ctx context.Context, slot int) error) error {
	lease, err := semaphore.New(l, 3).Lock(ctx, "exports", locker.MaxHold(time.Hour))
	if err != nil {
		return err
	}
	defer lease.Unlock(ctx)
	held, cancel := locker.WithLease(ctx, lease) // held ends when the permit is lost
	defer cancel()
	permit, _ := locker.LeaseAs[*semaphore.Permit](lease)
	return export(held, permit.Slot()) // no two that run at a time have the same number
}

func Example_permits() {
	l := memory.New()
	defer l.Close()
	var slots [3]bool
	var running sync.WaitGroup
	var mu sync.Mutex
	for range 9 {
		running.Go(func() {
			_ = exportReport(context.Background(), l, func(_ context.Context, slot int) error {
				mu.Lock()
				defer mu.Unlock()
				slots[slot] = true
				return nil
			})
		})
	}
	running.Wait()
	fmt.Println(slots[0])
	// Output:
	// true
}

func serve(ctx context.Context, rw *rwlock.RWLock, use func(ctx context.Context) error) error {
	return locker.Do(ctx, rw.Shared(), "schema", use) // beside other requests, in all processes
}

func change(ctx context.Context, rw *rwlock.RWLock, to func(ctx context.Context) error) error {
	return locker.Do(ctx, rw.Exclusive(), "schema", to) // when those requests have ended, and before later ones
}

func Example_readers() {
	l := memory.New()
	defer l.Close()
	rw, ctx := rwlock.New(l), context.Background()
	var version int
	read := func(context.Context) error {
		fmt.Println("version", version)
		return nil
	}
	fmt.Println(serve(ctx, rw, read))
	fmt.Println(change(ctx, rw, func(context.Context) error {
		version++
		return nil
	}))
	fmt.Println(serve(ctx, rw, read))
	// Output:
	// version 0
	// <nil>
	// <nil>
	// version 1
	// <nil>
}

func rebuild(ctx context.Context, l locker.Locker, job func(context.Context, <-chan struct{}) (bool, error)) error {
	for done := false; ; { // each turn of the job comes after those that have waited
		err := locker.Do(ctx, l, "index", func(ctx context.Context) (err error) {
			lease, _ := locker.LeaseFrom(ctx)
			done, err = job(ctx, locker.Wanted(lease))
			return err
		})
		if done || err != nil {
			return err
		}
	}
}

func Example_makesRoom() {
	l := memory.New()
	defer l.Close()
	ctx, parts := context.Background(), 0
	job := func(_ context.Context, wanted <-chan struct{}) (done bool, err error) {
		if parts++; parts == 2 {
			fmt.Println("the rest")
			return true, nil
		}
		go func() {
			_ = locker.Do(ctx, l, "index", func(context.Context) error {
				fmt.Println("somebody else")
				return nil
			})
		}()
		<-wanted // a real job looks at it between two steps
		fmt.Println("saved")
		return false, nil
	}
	fmt.Println(rebuild(ctx, l, job))
	// Output:
	// saved
	// somebody else
	// the rest
	// <nil>
}

func book(ctx context.Context, l locker.Locker, write func(context.Context) error) error {
	if lease, ok := locker.LeaseFrom(ctx); ok && lease.Key() == "books" {
		return write(ctx) // a caller has the lock: ctx is that of its locker.Do
	}
	return locker.Do(ctx, l, "books", write)
}

// A function that may be called with the lock or without it.
func Example_nested() {
	l := memory.New()
	defer l.Close()
	write := func(context.Context) error {
		fmt.Println("written")
		return nil
	}
	nested := func(ctx context.Context) error { return book(ctx, l, write) }
	fmt.Println(nested(context.Background()))
	fmt.Println(locker.Do(context.Background(), l, "books", nested))
	fmt.Println(locker.Do(context.Background(), l, "pens", nested))
	// Output:
	// written
	// <nil>
	// written
	// <nil>
	// written
	// <nil>
}
