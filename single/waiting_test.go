package single_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

const queueKey = "{lock:k}:lockqueue"

// heartbeat is how often a waiter looks at the latest, whatever it was told. A waiter that cannot be told looks every
// untoldPoll.
const heartbeat, untoldPoll = 2500 * time.Millisecond, 100 * time.Millisecond

// anyDriver runs f for one driver, another one each time.
func anyDriver(t *testing.T, f func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver)) {
	t.Parallel()
	names := drivers.Names()
	name := names[rand.IntN(len(names))]
	t.Log(name)
	f(t, opened(name))
}

// mustTry locks k, by default with a TTL that is no help if it is not released.
func mustTry(t testing.TB, c *locker.Client, opts ...locker.Option) locker.Lease {
	t.Helper()
	l, err := c.TryLock(t.Context(), "k", append([]locker.Option{locker.TTL(ttl)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// outcome is what a Lock came to.
type outcome struct {
	lease locker.Lease
	err   error
	at    time.Time
}

// lockLater begins to lock k, by default with the same TTL as mustTry.
func lockLater(t testing.TB, c *locker.Client, opts ...locker.Option) <-chan outcome {
	result := make(chan outcome, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	go func() {
		l, err := c.Lock(ctx, "k", append([]locker.Option{locker.TTL(ttl)}, opts...)...)
		result <- outcome{l, err, time.Now()}
	}()
	return result
}

// take waits for the lock, gives it back, and returns when it was there.
func take(t testing.TB, result <-chan outcome) time.Time {
	t.Helper()
	o := <-result
	if o.err != nil {
		t.Fatal(o.err)
	}
	steady.Unlock(t, o.lease)
	return o.at
}

func queued(t testing.TB, s *redistest.Server) int64 {
	t.Helper()
	return s.Cmd(t, "ZCARD", queueKey).(int64)
}

// listening waits until the server's queue has n waiters that can all be told.
func listening(t *testing.T, s *redistest.Server, n int) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprint(n, " are waiting and can be told"), func() bool {
		told := 0
		for i, v := range s.Cmd(t, "HGETALL", "{lock:k}:lockwait").([]any) {
			if _, channel, _ := strings.Cut(v.(string), "|"); i%2 == 1 && channel != "" {
				told++
			}
		}
		return told == n
	})
}

// looking waits until somebody waits and has looked at the lock some times. The first pauses of a waiter are short,
// because its subscription is still being made. What it does afterwards is what the tests are about.
func looking(t *testing.T, s *redistest.Server) {
	t.Helper()
	eventually(t, 30*time.Second, "somebody waits", func() bool { return queued(t, s) == 1 })
	before := roundTrips(t, s)
	eventually(t, 30*time.Second, "the waiter has looked four times", func() bool { return roundTrips(t, s) >= before+4 })
}

// connections counts those of subscribers.
func connections(t testing.TB, s *redistest.Server) int {
	t.Helper()
	return strings.Count(s.Cmd(t, "CLIENT", "LIST", "TYPE", "pubsub").(string), "\n")
}

// nothingLeft waits until nobody holds or waits for the lock any more, as far as the server knows.
func nothingLeft(t *testing.T, s *redistest.Server) {
	t.Helper()
	eventually(t, 10*time.Second, "nothing is left of the lock", func() bool {
		return len(s.Left(t)) == 0
	})
}

// A thousand goroutines of one Client cost the server what one does, and come in the order of their arrival.
func TestAThousandGoroutinesWait(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		lease := mustTry(t, closing(t, single.New(build(t, s.Addr()))))
		c := closing(t, single.New(build(t, s.Addr())))
		const n = 1000
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var order []int // guarded by the lock itself
		var first [n]sync.Once
		var wg sync.WaitGroup
		for i := range n {
			waits := make(chan struct{})
			ctx := lockertrace.With(ctx, &lockertrace.Trace{Waiting: func(lockertrace.Waiting) {
				first[i].Do(func() { close(waits) })
			}})
			wg.Go(func() {
				l, err := c.Lock(ctx, "k")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				if i%50 == 0 {
					if q, err := s.Do("ZCARD", queueKey); err != nil || q.(int64) > 1 {
						t.Errorf("%v, %v wait at the server, want one", q, err)
					}
				}
				steady.Unlock(t, l)
			})
			<-waits // it has its place
		}
		listening(t, s, 1)
		if got := queued(t, s); got != 1 {
			t.Errorf("%d wait at the server, want one", got)
		}
		if got := connections(t, s); got != 1 {
			t.Errorf("%d connections of subscribers, want one", got)
		}
		before, start := roundTrips(t, s), time.Now()
		time.Sleep(3 * time.Second) // not for anything to happen: it must not
		sent, took := roundTrips(t, s)-before, time.Since(start)
		if sent > 4*int(took/(3*time.Second)+1) {
			t.Errorf("%d requests in %v", sent, took)
		}
		steady.Unlock(t, lease)
		wg.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("goroutine %d came as number %d", got, i)
			}
		}
		if got := connections(t, s); got != 1 {
			t.Errorf("%d connections of subscribers, want one", got)
		}
		nothingLeft(t, s)
	})
}

// The release of another library notifies nobody, so a waiter polls. Of some pauses the shortest counts.
func TestWaiterPollsBehindAnotherLibrary(t *testing.T) {
	eachDriver(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
		s := redistest.Start(t)
		const value = "c29tZWJvZHkncw=="
		s.Cmd(t, "SET", "lock:k", value, "NX", "PX", 600000)
		c := closing(t, single.New(build(t, s.Addr())))
		pauses := make(chan time.Duration, 10000)
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Woken: func(w lockertrace.Wake) { pauses <- w.Slept }})
		result := make(chan outcome, 1)
		go func() {
			l, err := c.Lock(ctx, "k", locker.TTL(ttl))
			result <- outcome{l, err, time.Now()}
		}()
		listening(t, s, 1)
		for len(pauses) > 0 { // before it could be told
			<-pauses
		}
		shortest := <-pauses
		for range 4 {
			shortest = min(shortest, <-pauses)
		}
		if shortest >= heartbeat/2 {
			t.Errorf("the shortest pause was %v", shortest)
		}
		if got := s.Cmd(t, "GET", "lock:k"); got != value {
			t.Errorf("their value is %q now", got)
		}
		s.Cmd(t, "DEL", "lock:k")
		take(t, result)
		nothingLeft(t, s)
	})
}

// What appears under the key, and is no lock, is not waited for.
func TestForeignKeyWhileWaiting(t *testing.T) {
	t.Parallel()
	for _, value := range [][]any{{"SET", "lock:k", "no expiry"}, {"HSET", "lock:k", "field", "value"}} {
		t.Run(value[0].(string), func(t *testing.T) {
			s := redistest.Start(t)
			build := opened("redigo")
			lease := mustTry(t, closing(t, single.New(build(t, s.Addr()))), locker.NoRenewal())
			result := lockLater(t, closing(t, single.New(build(t, s.Addr()))))
			listening(t, s, 1)
			s.Cmd(t, "DEL", "lock:k")
			s.Cmd(t, value...)
			o := <-result
			wantErr(t, o.err, locker.ErrForeignKey)
			eventually(t, 5*time.Second, "the waiter has left", func() bool { return queued(t, s) == 0 })
			_ = lease.Unlock(t.Context())
			if s.Cmd(t, "EXISTS", "lock:k") != int64(1) {
				t.Error("what was not a lock is gone")
			}
		})
	}
}
