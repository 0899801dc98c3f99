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
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// eachDriver runs f for every driver with a client of its own making; with -short, for one of them.
func eachDriver(t *testing.T, f func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver)) {
	for _, name := range short.Part(t, 1, drivers.Names()) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, builders[name])
		})
	}
}

// lostBecause checks why a lease ended.
func lostBecause(t *testing.T, err error, want locker.LostReason) {
	t.Helper()
	var lost *locker.LostError
	if !errors.As(err, &lost) || lost.Reason != want {
		t.Errorf("got %v, want that the lock was lost: %s", err, want)
	}
}

// pttl returns how long the server keeps the lock, and a moment before which it does not forget it.
func pttl(t *testing.T, s *redistest.Server) (left time.Duration, notBefore time.Time) {
	t.Helper()
	asked := time.Now()
	left = time.Duration(s.Cmd(t, "PTTL", "lock:k").(int64)) * time.Millisecond
	return left, asked.Add(left)
}

// A holder is cut off: nothing it sends arrives any more, and the connections stay open. It knows that it has lost the
// lock before the server gives it to somebody else.
func TestPartitionedHolderStopsBeforeTheKeyIsFree(t *testing.T) {
	const ttl = 3 * time.Second
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		other := closing(t, single.New(build(t, s.Addr())))
		// A busy machine may wake the holder tens of milliseconds late now and then; what is wrong is late every time.
		var spare time.Duration
		for try := 0; try == 0 || try < 4 && spare <= 0; try++ {
			spare = partition(t, s, other, build, ttl)
			t.Logf("Done closed %v before the server forgot the key", spare.Round(time.Millisecond))
		}
		if spare <= 0 {
			t.Errorf("Done closed %v after the key was free, at best", -spare)
		}
	})
}

// partition cuts a holder off, and returns by how much Done closed before the key could be taken.
func partition(t *testing.T, s *redistest.Server, other *locker.Client,
	build func(t testing.TB, addr string) drivers.Driver, ttl time.Duration,
) (spare time.Duration) {
	proxy := fault.New(t, s.Addr())
	c := closing(t, single.New(build(t, proxy.Addr()), single.Timeout(time.Second)))
	renewed := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(lockertrace.With(t.Context(),
		&lockertrace.Trace{Renewed: func(r lockertrace.Renewal) {
			if r.Err == nil {
				renewed <- struct{}{}
			}
		}}))
	defer cancel()
	type taken struct {
		lease locker.Lease
		err   error
		at    time.Time
	}
	next := make(chan taken, 1)
	err := locker.Do(ctx, c, "k", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		go func() {
			l, err := other.Lock(t.Context(), "k", locker.TTL(time.Minute))
			next <- taken{l, err, time.Now()}
		}()
		<-renewed
		proxy.Handle(func(fault.Request) fault.Action { return fault.Hold })
		left, free := pttl(t, s)
		if left <= 0 {
			t.Fatalf("PTTL %v while the lock is held", left)
		}
		<-ctx.Done()
		closed := time.Now()
		spare = free.Sub(closed)

		lostBecause(t, context.Cause(ctx), locker.LostExpired)
		lostBecause(t, lease.Err(), locker.LostExpired)
		if until := lease.Until(); until.After(free) {
			t.Errorf("Until is %v after the server forgets the key", until.Sub(free))
		}
		cancel() // so that Unlock does not wait for an answer for long
		return nil
	}, locker.TTL(ttl))
	wantErr(t, err, locker.ErrLost, locker.ErrUnavailable, context.Canceled)

	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	// What was on its way arrives now: it must not touch the lock of the other.
	proxy.Handle(nil)
	proxy.Release()
	eventually(t, 10*time.Second, "the late release is answered", func() bool {
		_, err := c.TryLock(t.Context(), "k")
		return errors.Is(err, locker.ErrHeld)
	})
	if left, _ := pttl(t, s); left < 30*time.Second {
		t.Errorf("the other's lock has %v left: it was shortened", left)
	}
	if err := got.lease.Unlock(t.Context()); err != nil {
		t.Errorf("the other was robbed: %v", err)
	}
	return spare
}

// A lock that somebody deletes or takes by hand is missed by the next renewal, a third of the TTL later at most.
func TestLossByHandIsNoticedByTheNextRenewal(t *testing.T) {
	const ttl = 3 * time.Second
	for reason, rob := range map[locker.LostReason][]any{
		locker.LostGone:      {"DEL", "lock:k"},
		locker.LostTakenOver: {"SET", "lock:k", "somebody", "PX", 60000},
	} {
		t.Run(string(reason), func(t *testing.T) {
			eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				s := redistest.Start(t)
				c := closing(t, single.New(build(t, s.Addr())))
				// Generous, but less than what is left of the TTL, after which the holder would have known anyway; the
				// best of several tries, for machines stall.
				const most, tries = ttl/3 + time.Second, 4
				for n := 1; ; n++ {
					var took time.Duration
					var cause error
					err := locker.Do(t.Context(), c, "k", func(ctx context.Context) error {
						s.Cmd(t, rob...)
						robbed := time.Now()
						<-ctx.Done()
						took, cause = time.Since(robbed), context.Cause(ctx)
						return nil
					}, locker.TTL(ttl))
					if took > most && n < tries {
						s.Cmd(t, "DEL", "lock:k")
						continue
					}
					if took > most {
						t.Errorf("noticed after %v", took)
					}
					lostBecause(t, cause, reason)
					wantErr(t, err, locker.ErrNotHeld, locker.ErrLost)
					lostBecause(t, err, reason)
					break
				}
			})
		})
	}
}

// A lock whose MaxHold is over is lost for its holder, but stays taken until it is unlocked or its TTL ends.
func TestMaxHold(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		c, other := closing(t, single.New(build(t, s.Addr()))), closing(t, single.New(build(t, s.Addr())))
		const most = 300 * time.Millisecond
		var start time.Time
		var l locker.Lease
		var err error
		for range 20 {
			start = time.Now()
			l, err = c.Lock(t.Context(), "k", locker.TTL(ttl), locker.MaxHold(most))
			if err == nil || time.Since(start) < most { // or it was granted when that was over
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if until := l.Until(); until.After(time.Now().Add(most)) {
			t.Errorf("Until is %v after the start", until.Sub(start))
		}
		select {
		case <-l.Done():
		case <-time.After(10 * time.Second):
		}
		lostBecause(t, l.Err(), locker.LostMaxHold)
		if left, _ := pttl(t, s); left < time.Minute {
			t.Errorf("the key has %v left", left)
		}
		_, err = other.TryLock(t.Context(), "k")
		wantErr(t, err, locker.ErrHeld)
		if err := l.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		if left, _ := pttl(t, s); left > 0 {
			t.Errorf("the key has %v left after Unlock", left)
		}
	})
}

// Unlock before MinHold is over leaves the key taken, by nobody, for the rest; the process may be gone by then. Who
// waits gets the lock when that is over, whether it queues or not.
func TestMinHold(t *testing.T) {
	const hold = 800 * time.Millisecond
	for name, fifo := range map[string]bool{"queue": true, "no queue": false} {
		for what, lease := range map[string]time.Duration{"TTL longer": ttl, "TTL shorter": hold / 4} {
			t.Run(name+", "+what, func(t *testing.T) {
				eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
					s := redistest.Start(t)
					for tries := 1; !minHold(t, s, build, fifo, lease, hold); tries++ {
						if tries == 20 {
							t.Fatal("the lease is lost each time")
						}
						s.Cmd(t, "FLUSHALL")
					}
				})
			})
		}
	}
}

// minHold reports false if, on a machine that stalls, the lock was not granted within its TTL or the lease ended before
// another client waited for it.
func minHold(t *testing.T, s *redistest.Server, build func(t testing.TB, addr string) drivers.Driver, fifo bool,
	lease, hold time.Duration,
) bool {
	c := single.New(build(t, s.Addr()), single.FIFO(fifo))
	defer c.Close()
	other := single.New(build(t, s.Addr()), single.FIFO(fifo))
	defer other.Close()
	start := time.Now()
	l, err := c.Lock(t.Context(), "k", locker.TTL(lease), locker.MinHold(hold))
	if errors.Is(err, locker.ErrUnavailable) { // no answer within the TTL
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	token := l.Token()
	waits := make(chan struct{})
	type result struct {
		lease locker.Lease
		err   error
	}
	next := make(chan result, 1)
	go func() {
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Waiting: func(lockertrace.Waiting) { close(waits) }})
		l, err := other.Lock(ctx, "k")
		next <- result{l, err}
	}()
	select {
	case <-waits:
	case <-l.Done():
		return false
	}
	if err := l.Unlock(t.Context()); errors.Is(err, locker.ErrLost) {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // the process is gone
	left, _ := pttl(t, s)
	owner := s.Cmd(t, "GET", "lock:k")
	if time.Since(start) < hold { // else it may be somebody else's by now
		if left <= 0 || left > hold {
			t.Errorf("the key has %v left", left)
		}
		if owner == token {
			t.Error("the key is still the owner's, who could extend or release it")
		}
	}
	got := <-next
	if got.err != nil {
		t.Fatal(got.err)
	}
	if d := time.Since(start); d < hold-2*time.Millisecond { // the server counts whole milliseconds
		t.Errorf("somebody else got the lock after %v", d)
	}
	if err := got.lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	return true
}

// holderEnv makes the test binary play the holder of TestStoppedHolder.
const holderEnv = "SINGLE_TEST_HOLDER" // driver, address, question

// playHolder holds a lock, does nothing but look at the clock, and when its time is over, which is when it goes on
// after having been stopped, asks before anything else whether it still holds the lock.
func playHolder() {
	driver, addr, question := "", "", ""
	_, _ = fmt.Sscanf(os.Getenv(holderEnv), "%s %s %s", &driver, &addr, &question)
	err := locker.Do(context.Background(), player(driver, addr), "k", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
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
	}, locker.TTL(2*time.Second))
	fmt.Printf("do: %v\n", err)
}

// A process that was stopped until its lock was somebody else's is told so by whatever it asks first.
func TestStoppedHolder(t *testing.T) {
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
			l, err := c.Lock(ctx, "k") // when the holder's TTL is over
			_ = child.Process.Signal(syscall.SIGCONT)
			if err != nil {
				t.Fatal(err)
			}
			if got := read("awake: "); !strings.Contains(got, tt.answer) {
				t.Errorf("%s said %s", tt.question, got)
			}
			if got := read("do: "); !strings.Contains(got, "lock lost: expired") {
				t.Errorf("Do said %s", got)
			}
			if err := child.Wait(); err != nil {
				t.Error(err)
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Errorf("the stopped process has touched the lock of its successor: %v", err)
			}
		})
	}
}
