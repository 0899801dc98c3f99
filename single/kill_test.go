package single_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// waiterEnv makes the test binary the process that waiterProcess starts.
const waiterEnv = "SINGLE_TEST_WAITER" // driver, address

// playWaiter waits for the lock until it is killed.
func playWaiter() {
	driver, addr, _ := strings.Cut(os.Getenv(waiterEnv), " ")
	l, err := player(driver, addr).Lock(context.Background(), "k", locker.TTL(ttl))
	fmt.Println("locked", l, err)
	time.Sleep(time.Minute) // should nobody kill it
}

// waiterProcess starts a process that waits for the lock. It ends with the test.
func waiterProcess(t *testing.T, driver, addr string) (p *os.Process, locked <-chan struct{}) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), waiterEnv+"="+driver+" "+addr)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	has, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "locked") {
				close(has)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
	})
	return cmd.Process, has
}

// A process is killed while it waits for the lock, at each stage of that.
func TestWaiterIsKilled(t *testing.T) {
	t.Parallel()
	stages := []struct {
		name string
		// kill kills the process, which waits, and lets the holder release the lock, in the order that the stage needs.
		kill  killing
		bound time.Duration // 0 if the server knows that the waiter is dead; the others notice it by a heartbeat
	}{
		{"in the queue", func(t *testing.T, s *redistest.Server, _ *fault.Proxy, waiter *os.Process, release func()) {
			kill(t, waiter, syscall.SIGKILL)
			eventually(t, 30*time.Second, "its connection is gone", func() bool { return connections(t, s) == 1 })
			release()
		}, 0},
		{"in the queue, and its connection not yet",
			func(t *testing.T, s *redistest.Server, _ *fault.Proxy, waiter *os.Process, release func()) {
				kill(t, waiter, syscall.SIGKILL)
				release()
			}, heartbeat},
		{"granted, not told", func(t *testing.T, s *redistest.Server, _ *fault.Proxy, waiter *os.Process, release func()) {
			stop(t, s, waiter) // the message waits in its kernel
			release()
			if holder, _ := s.Cmd(t, "GET", "lock:k").(string); holder == "" {
				t.Error("the lock was not granted")
			}
			kill(t, waiter, syscall.SIGKILL)
		}, heartbeat},
		{"told, not claimed", func(t *testing.T, s *redistest.Server, p *fault.Proxy, waiter *os.Process, release func()) {
			p.Handle(func(r fault.Request) fault.Action {
				if isClaim(r) {
					return fault.Hold
				}
				return fault.Pass
			})
			release()
			p.Wait(t, isClaim)
			kill(t, waiter, syscall.SIGKILL)
		}, heartbeat},
	}
	for _, stage := range stages {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			for _, driver := range drivers.Names() {
				t.Run(driver, func(t *testing.T) {
					t.Parallel()
					promptly(t, stage.bound, func() time.Duration { return stalledBy(t, driver, stage.kill) })
				})
			}
		})
	}
}

type killing func(t *testing.T, s *redistest.Server, p *fault.Proxy, waiter *os.Process, release func())

// stalledBy returns how late the next one gets the lock when a process that waits is killed.
func stalledBy(t *testing.T, driver string, kill killing) (late time.Duration) {
	s := redistest.Start(t)
	p := fault.New(t, s.Addr())
	lease := mustTry(t, closing(t, single.New(opened(driver)(t, s.Addr()))), locker.TTL(ttl))
	waiter, locked := waiterProcess(t, driver, p.Addr())
	listening(t, s, 1)
	behind := lockLater(t, closing(t, single.New(opened(driver)(t, s.Addr()))), locker.TTL(ttl))
	listening(t, s, 2)
	kill(t, s, p, waiter, func() {
		steady.Unlock(t, lease)
	})
	began := time.Now()
	late = take(t, behind).Sub(began)
	p.Release() // what it had sent arrives after all
	nothingLeft(t, s)
	select {
	case <-locked:
		t.Error("the process that was to be killed got the lock")
	default:
	}
	return late
}

// A process that is stopped, with others behind it, stalls them once, and gets the lock when it goes on.
func TestWaiterIsStopped(t *testing.T) {
	t.Parallel()
	promptly(t, heartbeat, func() time.Duration {
		s := redistest.Start(t)
		lease := mustTry(t, closing(t, single.New(opened("goredis")(t, s.Addr()))), locker.TTL(ttl))
		waiter, locked := waiterProcess(t, "goredis", s.Addr())
		listening(t, s, 1)
		behind := lockLater(t, closing(t, single.New(opened("goredis")(t, s.Addr()))), locker.TTL(ttl))
		listening(t, s, 2)
		stop(t, s, waiter)
		released := time.Now()
		steady.Unlock(t, lease)
		late := take(t, behind).Sub(released)
		kill(t, waiter, syscall.SIGCONT)
		select {
		case <-locked:
		case <-time.After(10 * time.Second):
			t.Error("the process that was stopped for a while does not get the lock")
		}
		return late
	})
}

// stop stops processes that wait, and returns when the server has seen the last of their requests: what it hands over
// after that they do not come for.
func stop(t *testing.T, s *redistest.Server, ps ...*os.Process) {
	t.Helper()
	for _, p := range ps {
		kill(t, p, syscall.SIGSTOP)
	}
	for _, p := range ps {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("the process does not stop: %v, %#x", err, status)
		}
	}
	// Their requests are in the server's sockets by now. It reads all sockets before it looks at one again.
	for range 2 {
		s.Cmd(t, "PING")
	}
}

func kill(t *testing.T, p *os.Process, sig syscall.Signal) {
	t.Helper()
	if err := p.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
