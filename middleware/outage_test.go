package middleware_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/middleware/retry"
	"github.com/golocker/locker/single"
)

const (
	callers = 200
	// longTTL is how long a key that was left behind would exist.
	longTTL = 5 * time.Minute
)

// storm runs 200 callers, two per key, which lock and unlock during an outage. It returns the counts of the callers and
// of the store.
type storm struct {
	lasted    time.Duration // the outage
	perSecond []int         // operations that reached the Client during it
	recovered time.Duration // after the outage, until every caller had locked and unlocked again
	failed    int           // calls of Lock that failed, in all
	warnings  int           // lines that were logged
}

func rage(t *testing.T, c locker.Locker, outage time.Duration, down, up func()) storm {
	t.Helper()
	var m meter
	var lines lineCounter
	m.reset()
	l := locker.Wrap(c, retry.New(), m.middleware, logging.New(slog.New(slog.NewTextHandler(&lines, nil))))
	var over atomic.Bool
	var failed atomic.Int64
	var before, after sync.WaitGroup
	for i := range callers {
		before.Add(1)
		after.Go(func() {
			reached := sync.OnceFunc(before.Done)
			defer reached()
			for last := false; !last; {
				last = over.Load() // what follows is after the outage
				lease, err := l.Lock(context.Background(), fmt.Sprint("k", i/2), locker.TTL(longTTL))
				if err != nil {
					failed.Add(1)
					continue
				}
				reached()
				time.Sleep(10 * time.Millisecond)
				err = lease.Unlock(context.Background())
				last = last && err == nil
				time.Sleep(90 * time.Millisecond)
			}
		})
	}
	before.Wait()
	down()
	m.reset()
	began := time.Now()
	time.Sleep(outage)
	s := storm{perSecond: m.taken(), lasted: time.Since(began)}
	up()
	end := time.Now()
	over.Store(true)
	after.Wait()
	s.recovered, s.failed, s.warnings = time.Since(end), int(failed.Load()), int(lines.n.Load())
	return s
}

// check compares the counts with what is documented. bySecond says that calls are counted in the right second, which is
// not the case on a busy machine.
func (s storm) check(t *testing.T, bySecond bool) {
	t.Helper()
	t.Logf("operations per second: %v; all recovered after %v; %d calls failed; %d lines logged", s.perSecond,
		s.recovered, s.failed, s.warnings)
	total := 0
	for second, n := range s.perSecond {
		// Twice as many are allowed, because the seconds of the meter and of the middleware begin at different times.
		if bySecond && second > 0 && n > 2*retry.DefaultPerSecond {
			t.Errorf("%d operations in second %d of the outage, %d retries are allowed", n, second, retry.DefaultPerSecond)
		}
		total += n
	}
	// At first every caller fails once, and what a second without retries has saved is used. After that, the retries of
	// each second are used.
	if most := 2*callers + retry.DefaultPerSecond*(int(s.lasted/time.Second)+2); total > most {
		t.Errorf("%d operations in the outage, want %d at most", total, most)
	}
	if s.failed > 0 {
		t.Errorf("%d calls of Lock failed, although the outage was shorter than what they tolerate", s.failed)
	}
}

// An outage of half a minute, on simulated nodes that refuse connections or hang. With -short, each backend has one of
// these outages, and not all have the same.
func TestOutage(t *testing.T) {
	const outage = 30 * time.Second
	backends := map[string]opener{"single": openSingle, "cluster": openCluster, "redlock": openRedlock}
	for _, name := range short.Part(t, len(backends), []string{
		"single refused", "single hung", "cluster hung", "cluster refused", "redlock refused", "redlock hung",
	}) {
		backend, how, _ := strings.Cut(name, " ")
		open := backends[backend]
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var w simnode.Wire
				nodes, fault, end := simnode.NewNodes(3), w.Fail, func() {}
				if how == "hung" {
					fault = w.Hang
				}
				c := open(nodes, w.DeliverInTime)
				s := rage(t, c, outage, func() { end = fault() }, func() { end() })
				s.check(t, true)
				if s.recovered > 30*time.Second {
					t.Errorf("it took %v until all had recovered", s.recovered)
				}
				if s.warnings > 2*len(nodes)+2 {
					t.Errorf("%d lines were logged of one outage", s.warnings)
				}
				time.Sleep(15 * time.Second) // queue positions are kept for 12 s
				if left := nodes.Left(); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
				if closer, ok := locker.As[io.Closer](c); ok {
					if err := closer.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// Real servers are killed or stopped, for two seconds or for the duration in LOCKER_MEASURE.
func TestOutageOfRealServers(t *testing.T) {
	t.Parallel()
	outage := 2 * time.Second
	if d, err := time.ParseDuration(os.Getenv("LOCKER_MEASURE")); err == nil {
		outage = d
	}
	for _, backend := range []string{"single", "redlock"} {
		for _, how := range []string{"killed", "stopped"} {
			t.Run(backend+" "+how, func(t *testing.T) {
				t.Parallel()
				n := map[string]int{"single": 1, "redlock": 3}[backend]
				var servers []*redistest.Server
				var ds []drivers.Driver
				for range n {
					server := redistest.Start(t)
					d, err := drivers.Open(t.Context(), "goredis", drivers.Config{Network: "tcp", Addr: server.Addr()})
					if err != nil {
						t.Fatal(err)
					}
					servers, ds = append(servers, server), append(ds, d)
				}
				c := redlockOf(ds)
				if backend == "single" {
					c = single.New(ds[0])
				}
				each := func(f func(*redistest.Server)) func() {
					return func() {
						for _, server := range servers {
							f(server)
						}
					}
				}
				down, up := each((*redistest.Server).Kill), each((*redistest.Server).Restart)
				if how == "stopped" {
					down, up = each((*redistest.Server).Pause), each((*redistest.Server).Resume)
				}
				s := rage(t, c, outage, down, up)
				s.check(t, false)
				for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
					var left []string
					for _, server := range servers {
						left = append(left, server.Left(t)...)
					}
					if len(left) == 0 {
						break
					}
					if time.Now().After(end) {
						t.Errorf("left behind: %q", left)
						break
					}
				}
				if closer, ok := locker.As[io.Closer](c); ok {
					if err := closer.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}
