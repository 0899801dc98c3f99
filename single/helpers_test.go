package single_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
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

// roundTrips counts the script calls that a server has executed, from INFO commandstats.
func roundTrips(t *testing.T, s *redistest.Server) (n int) {
	t.Helper()
	for line := range strings.Lines(s.Cmd(t, "INFO", "commandstats").(string)) {
		name, stats, _ := strings.Cut(line, ":calls=")
		if name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			calls, _, _ := strings.Cut(stats, ",")
			c, err := strconv.Atoi(calls)
			if err != nil {
				t.Fatal(err)
			}
			n += c
		}
	}
	return n
}
