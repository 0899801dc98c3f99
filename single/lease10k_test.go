package single_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/single"
)

// counter is a driver that counts round trips and the commands in them.
type counter struct {
	drivers.Driver
	trips, commands atomic.Int64
}

func (c *counter) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	c.trips.Add(1)
	c.commands.Add(int64(len(cmds)))
	return c.Driver.Do(ctx, cmds...)
}

// clientCPU returns the processor time that this process has used.
func clientCPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// 10,000 leases are held without a goroutine for each, and renewed in batches. LOCKER_MEASURE makes it take longer, a
// minute or the duration that it says, with each of the drivers.
func TestTenThousandLeases(t *testing.T) {
	const n, ttl = 10000, 15 * time.Second
	d, names := time.Duration(0), []string{"goredis"} // until every lease has been renewed once, on average
	if measure := os.Getenv("LOCKER_MEASURE"); measure != "" {
		names = drivers.Names()
		var err error
		if d, err = time.ParseDuration(measure); err != nil {
			d = time.Minute
		}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			driver := &counter{Driver: opened(name)(t, s.Addr())}
			c := closing(t, single.New(driver, single.Timeout(time.Minute))) // a stall is no failure
			var renewed, failed, lost atomic.Int64
			ctx := lockertrace.With(t.Context(), &lockertrace.Trace{
				Renewed: func(r lockertrace.Renewal) {
					renewed.Add(1)
					if r.Err != nil {
						failed.Add(1)
					}
				},
				Lost: func(error) { lost.Add(1) },
			})
			leases := make([]locker.Lease, n)
			all := func(f func(i int)) { // as 64 goroutines of a program would
				var next atomic.Int64
				var wg sync.WaitGroup
				for range 64 {
					wg.Go(func() {
						for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
							f(i)
						}
					})
				}
				wg.Wait()
			}
			idle := runtime.NumGoroutine()
			all(func(i int) {
				l, err := c.TryLock(ctx, "k"+strconv.Itoa(i), locker.TTL(ttl))
				if err != nil {
					t.Error(err)
					return
				}
				leases[i] = l
			})
			if t.Failed() {
				t.FailNow()
			}

			trips, commands, renewals := driver.trips.Load(), driver.commands.Load(), renewed.Load()
			server, client, start := s.CPU(t), clientCPU(t), time.Now()
			most, sum, samples := 0, 0, 0
			for tick := time.Tick(5 * time.Millisecond); time.Since(start) < d ||
				d == 0 && renewed.Load()-renewals < n && time.Since(start) < 4*ttl; <-tick {
				g := runtime.NumGoroutine() - idle
				most, sum, samples = max(most, g), sum+g, samples+1
			}
			took := time.Since(start)
			server, client = s.CPU(t)-server, clientCPU(t)-client
			trips, commands, renewals = driver.trips.Load()-trips, driver.commands.Load()-commands, renewed.Load()-renewals
			perTrip := float64(commands) / float64(trips)
			t.Logf("%d leases for %v: goroutines above idle %d at most, %.1f on average; "+
				"CPU per second: process %v, server %v; %d renewals (%d failed), %d commands in %d round trips, %.1f each",
				n, took.Round(time.Second), most, float64(sum)/float64(samples), perSecond(client, took), perSecond(server, took),
				renewals, failed.Load(), commands, trips, perTrip)

			for _, l := range leases {
				if err := l.Err(); err != nil {
					t.Fatalf("%s: %v", l.Key(), err)
				}
			}
			if lost.Load() > 0 {
				t.Errorf("%d leases were lost", lost.Load())
			}
			if renewals < n {
				t.Errorf("only %d renewals in %v", renewals, took)
			}
			if most > 1024+100 { // a Client has 1,024 renewals in flight at most
				t.Errorf("%d goroutines", most)
			}
			if perTrip < 4 {
				t.Errorf("%.1f renewals per round trip", perTrip)
			}
			all(func(i int) {
				if err := leases[i].Unlock(ctx); err != nil {
					t.Error(err)
				}
			})
			if left := s.Keys(t, "lock:*"); len(left) > 0 {
				t.Errorf("%d keys are left, such as %s", len(left), left[0])
			}
		})
	}
}

func perSecond(cpu, d time.Duration) string {
	return fmt.Sprintf("%.1f ms", 1000*cpu.Seconds()/d.Seconds())
}
