package single_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// holderEnv makes the test binary play the holder of TestStoppedHolder.
const holderEnv = "SINGLE_TEST_HOLDER" // driver, address, question

// playHolder holds a lock, does nothing but look at the clock, and when its time is over, which is when it goes on
// after having been stopped, asks before anything else whether it still holds the lock.
func playHolder() {
	driver, addr, question := "", "", ""
	_, _ = fmt.Sscanf(os.Getenv(holderEnv), "%s %s %s", &driver, &addr, &question)
	c, held := player(driver, addr), false
	hold := func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		held = true
		fmt.Println("holding")
		for time.Now().Before(lease.Until()) { // not a sleep: its end is a chance for others to go first
		}
		var err error
		switch question {
		case "lease.Err":
			err = lease.Err()
		case "ctx.Err":
			err = ctx.Err()
		case "ctx.Done":
			select {
			case <-ctx.Done():
				err = ctx.Err()
			default:
			}
		case "context.Cause":
			err = context.Cause(ctx)
		case "lease.Extend":
			err = lease.Extend(ctx)
		}
		fmt.Printf("awake: %v\n", err)
		return nil
	}
	var err error
	for !held { // on a busy machine, the server may not answer in time
		err = locker.Do(context.Background(), c, "k", hold, locker.TTL(2*time.Second))
		if !errors.Is(err, locker.ErrUnavailable) {
			break
		}
	}
	fmt.Printf("do: %v\n", err)
}

// A process that was stopped until its lock was somebody else's is told so by whatever it asks first.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ driver, question, answer string }{
		{"goredis", "lease.Err", "lock lost: expired"},
		{"redigo", "context.Cause", "lock lost: expired"},
		{"rueidis", "ctx.Err", "context canceled"},
		{"goredis", "ctx.Done", "context canceled"},
		{"redigo", "lease.Extend", "lock lost: expired"},
	} {
		t.Run(tt.question, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			c := closing(t, single.New(opened(tt.driver)(t, s.Addr())))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			child := exec.CommandContext(ctx, os.Args[0])
			child.Env = append(os.Environ(), holderEnv+"="+tt.driver+" "+s.Addr()+" "+tt.question, "GORACE=atexit_sleep_ms=0")
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			read := func(prefix string) string {
				for lines.Scan() {
					if text, ok := strings.CutPrefix(lines.Text(), prefix); ok {
						return text
					}
				}
				t.Errorf("the holder has not said %q", prefix)
				return ""
			}
			read("holding")
			_ = child.Process.Signal(syscall.SIGSTOP)
			l := steady.Lock(t, c, "k") // when the holder's TTL is over
			_ = child.Process.Signal(syscall.SIGCONT)
			if got := read("awake: "); !strings.Contains(got, tt.answer) {
				t.Errorf("%s said %s", tt.question, got)
			}
			if got := read("do: "); !strings.Contains(got, "lock lost: expired") {
				t.Errorf("Do said %s", got)
			}
			if err := child.Wait(); err != nil {
				t.Error(err)
			}
			if err := steady.Release(l); err != nil {
				t.Errorf("the stopped process has touched the lock of its successor: %v", err)
			}
		})
	}
}
