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

func Example() {
	ctx := context.Background()
	l := memory.New() // or single.New, redlock.New, or config.Open with a URL
	defer l.Close()
	err := locker.Do(ctx, l, "orders:42", func(ctx context.Context) error { // waits until ctx ends
		lease, _ := locker.LeaseFrom(ctx)
		return work(ctx, lease.Fence()) // this ctx ends if the lock is lost; the resource compares tokens, see below
	}, locker.TTL(10*time.Second))
	fmt.Println("done:", err)
	// Output: done: <nil>
}

func work(context.Context, uint64) error { return nil }

func ExampleDo() {
	l := memory.New()
	defer l.Close()
	ctx := context.Background()
	err := locker.Do(ctx, l, "orders:42", func(ctx context.Context) error { // ctx ends if the lock is lost
		lease, _ := locker.LeaseFrom(ctx)
		fmt.Println("holding, with a fencing token:", lease.Fence() > 0)
		_, err := l.TryLock(ctx, "orders:42") // one attempt
		fmt.Println("the lock is held:", errors.Is(err, locker.ErrHeld))
		return nil
	})
	fmt.Println("do:", err)
	// Output:
	// holding, with a fencing token: true
	// the lock is held: true
	// do: <nil>
}

func ExampleTryDo() {
	l := memory.New()
	defer l.Close()
	ctx := context.Background()
	report := func(ctx context.Context) error { // ctx ends if the lock is lost
		fmt.Println("the report")
		err := locker.TryDo(ctx, l, "report", func(context.Context) error { panic("somebody else is at it") })
		fmt.Println("skipped:", errors.Is(err, locker.ErrHeld))
		return nil
	}
	fmt.Println("done:", locker.TryDo(ctx, l, "report", report))
	// Output:
	// the report
	// skipped: true
	// done: <nil>
}

func ExampleWithLease() {
	l := memory.New()
	defer l.Close()
	lease, err := locker.TryLockAll(context.Background(), l, []string{"a", "b"}, locker.MaxHold(50*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := locker.WithLease(context.Background(), lease)
	defer cancel()
	<-ctx.Done() // the work goes on until here
	fmt.Println("lost:", errors.Is(context.Cause(ctx), locker.ErrLost))
	fmt.Println("unlock:", lease.Unlock(context.Background()))
	// Output:
	// lost: true
	// unlock: <nil>
}

func ExampleLabel() {
	l := memory.New()
	defer l.Close()
	ctx := context.Background()
	_, err := l.Lock(ctx, "report", locker.Label("web-7:4211"), locker.TTL(28*time.Second))
	if err != nil {
		fmt.Println(err)
	}
	_, err = l.TryLock(ctx, "report")
	fmt.Println(err)
	// Output: locker: trylock "report": held by web-7:4211 for 28 s unless renewed
}

// The program in README.md is the tested example.
func TestReadmeShowsTheExample(t *testing.T) {
	text := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	_, example, _ := strings.Cut(text("example_test.go"), "func Example() {\n")
	example, _, _ = strings.Cut(example, "\t// Output:")
	example = strings.TrimPrefix(strings.ReplaceAll("\n"+example, "\n\t", "\n"), "\n")
	if !strings.Contains(text("README.md"), "```go\n"+example+"```\n") {
		t.Errorf("README.md does not show\n%s", example)
	}
}

// A program that ends lets go of nothing that is in use, and begins nothing new.
func ExampleClient_Drain() {
	l := memory.New()
	lease, err := l.TryLock(context.Background(), "import")
	if err != nil {
		panic(err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = lease.Unlock(context.Background()) }) // when the import has ended

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // on SIGTERM
	defer cancel()
	for _, lease := range l.Drain(ctx) {
		fmt.Println("still locked:", lease.Key())
	}
	_, err = l.TryLock(ctx, "export")
	fmt.Println(err)
	_ = l.Close()
	// Output:
	// locker: trylock "export": client is draining: it acquires no more locks
}
