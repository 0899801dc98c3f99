package locker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
)

// The programs of docs/recipes.md are these functions.
func TestRecipesShowTheExamples(t *testing.T) {
	page, err := os.ReadFile("docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("recipes_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) < 5 {
		t.Errorf("%d programs", len(blocks))
	}
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if !strings.Contains(string(source), code) {
			t.Errorf("recipes_test.go has no\n%s", code)
		}
	}
}

func onTick(ctx context.Context, l locker.Locker, tick time.Time, job func(context.Context) error) error {
	key := "report:" + tick.UTC().Format(time.RFC3339) // each tick is a lock of its own
	lease, err := l.TryLock(ctx, key, locker.MinHold(time.Minute))
	if errors.Is(err, locker.ErrHeld) {
		return nil // another machine runs it, or has run it
	}
	if err != nil {
		return err
	}
	return errors.Join(job(ctx), lease.Unlock(ctx))
}

func Example_cron() {
	l := memory.New()
	defer l.Close()
	tick := time.Date(2026, 11, 22, 6, 0, 0, 0, time.UTC)
	for range 3 { // machines
		fmt.Println(onTick(context.Background(), l, tick, func(context.Context) error {
			fmt.Println("the report")
			return nil
		}))
	}
	// Output:
	// the report
	// <nil>
	// <nil>
	// <nil>
}

type cache interface {
	Get(key string) (value string, ok bool)
	Put(key, value string)
}

func cached(ctx context.Context, l locker.Locker, c cache, key string, compute func(context.Context) string) (
	value string, err error,
) {
	if value, ok := c.Get(key); ok {
		return value, nil
	}
	err = locker.Do(ctx, l, "compute:"+key, func(ctx context.Context) error {
		var ok bool
		if value, ok = c.Get(key); !ok { // nobody has computed it while this caller waited
			value = compute(ctx)
			c.Put(key, value)
		}
		return ctx.Err()
	})
	return value, err
}

type mapCache map[string]string

func (m mapCache) Get(key string) (value string, ok bool) { value, ok = m[key]; return value, ok }
func (m mapCache) Put(key, value string)                  { m[key] = value }

func Example_singleflight() {
	l := memory.New()
	defer l.Close()
	c := mapCache{}
	for range 2 {
		value, err := cached(context.Background(), l, c, "answer", func(context.Context) string {
			fmt.Println("computing")
			return "42"
		})
		fmt.Println(value, err)
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

type toyDatabase struct{ version int }

func (d *toyDatabase) Version(context.Context) (int, error) { return d.version, nil }

func (d *toyDatabase) Migrate(_ context.Context, to int) error {
	fmt.Println("migrating to", to)
	d.version = to
	return nil
}

func Example_migrations() {
	l := memory.New()
	defer l.Close()
	db := &toyDatabase{version: 1}
	for range 2 { // instances that start
		fmt.Println(migrate(context.Background(), l, db, 3))
	}
	// Output:
	// migrating to 2
	// migrating to 3
	// <nil>
	// <nil>
}

func sweep(ctx context.Context, l locker.Locker, shards int, work func(shard int, lease locker.Lease) error) error {
	for shard := range shards {
		lease, err := l.TryLock(ctx, fmt.Sprint("shard:", shard))
		if errors.Is(err, locker.ErrHeld) {
			continue // another worker has it
		}
		if err != nil {
			return err
		}
		err = work(shard, lease) // it ends when lease.Done is closed
		if err = errors.Join(err, lease.Unlock(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func Example_shards() {
	l := memory.New()
	defer l.Close()
	ctx := context.Background()
	other, err := l.TryLock(ctx, "shard:1") // another worker
	fmt.Println(err)
	fmt.Println(sweep(ctx, l, 3, func(shard int, _ locker.Lease) error {
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
