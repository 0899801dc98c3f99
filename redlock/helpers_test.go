package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/redlock"
)

// longTTL is the TTL of keys that must not be left behind. Everything else is over much sooner.
const longTTL = 5 * time.Minute

// measuring reports whether the caller wants measurements, and how long a load is to run: LOCKER_MEASURE=1 or =60s. By
// default, tests check only correctness, so that a slow machine does not fail them.
func measuring(otherwise time.Duration) (time.Duration, bool) {
	v := os.Getenv("LOCKER_MEASURE")
	if d, err := time.ParseDuration(v); err == nil {
		return d, true
	}
	return otherwise, v != ""
}

// sideBySide runs one parallel subtest per name. It returns before they do.
func sideBySide(t *testing.T, names []string, f func(t *testing.T, name string)) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, name)
		})
	}
}

// eachDriver runs f with each driver; with -short, with one of them.
func eachDriver(t *testing.T, f func(t *testing.T, driver string)) {
	sideBySide(t, short.Part(t, 1, drivers.Names()), f)
}

func isAcquire(args []string) bool { return wire.Acquires(args) }
func isRelease(args []string) bool { return wire.Releases(args) }
func isRaise(args []string) bool   { return wire.Calls(args, "raise") }

// tap is a driver that reports every batch before it is sent and after its answer, and may delay both.
type tap struct {
	drivers.Driver
	before, after func(cmds []drivers.Command)
}

func (d tap) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	if d.before != nil {
		d.before(cmds)
	}
	replies, err := d.Driver.Do(ctx, cmds...)
	if d.after != nil {
		d.after(cmds)
	}
	return replies, err
}

// tapped makes a client whose driver of node i is wrap's. The caller closes it.
func (c cluster) tapped(t testing.TB, driver string, wrap func(i int, d drivers.Driver) drivers.Driver,
	opts ...redlock.Option) *locker.Client {
	t.Helper()
	var ds []drivers.Driver
	for i, s := range c {
		ds = append(ds, wrap(i, open(t, driver, s.Addr())))
	}
	opts = append([]redlock.Option{
		redlock.Names(c.addrs()...), redlock.Logger(slog.New(slog.DiscardHandler)), redlock.Budget(longTimeout),
	}, opts...)
	return redlock.New(ds, opts...)
}

// jitter delays a part of all acquisitions, on their way or on their way back, so that late grants are common.
func jitter(most time.Duration) func(i int, d drivers.Driver) drivers.Driver {
	return func(_ int, d drivers.Driver) drivers.Driver {
		sleep := func(cmds []drivers.Command) {
			if slices.ContainsFunc(cmds, func(cmd drivers.Command) bool { return isAcquire(cmd) }) && rand.IntN(3) == 0 {
				time.Sleep(rand.N(most))
			}
		}
		return tap{d, sleep, sleep}
	}
}

// rig is a cluster behind proxies and a client that goes through them.
type rig struct {
	cluster
	proxies []*fault.Proxy
	client  *locker.Client
}

// newRig makes one. timeout is that of an exchange and of the drivers, which differ in how long they put up with a
// connection that is silent.
func newRig(t *testing.T, driver string, n int, timeout time.Duration, opts ...redlock.Option) *rig {
	t.Helper()
	r := &rig{cluster: startCluster(t, n)}
	var addrs []string
	var ds []drivers.Driver
	for _, s := range r.cluster {
		p := fault.New(t, s.Addr())
		r.proxies = append(r.proxies, p)
		addrs = append(addrs, p.Addr())
		d, err := drivers.Open(t.Context(), driver, drivers.Config{Network: "tcp", Addr: p.Addr(), Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		ds = append(ds, d)
	}
	opts = append([]redlock.Option{
		redlock.Names(addrs...), redlock.Logger(slog.New(slog.DiscardHandler)), redlock.Timeout(timeout),
		redlock.Budget(longTimeout),
	}, opts...)
	l := redlock.New(ds, opts...)
	r.client = l
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	// Twice without a fault, so that connections exist and the servers know the scripts, raise.lua too. A stall may be
	// longer than timeout.
	for range 2 {
		r.diverge(t, "warm")
		eventually(t, 30*time.Second, "a lock without a fault",
			func() bool { return tryCycle(t.Context(), r.client, "warm") == nil })
	}
	return r
}

// diverge makes the counters of the nodes differ, by putting them ahead of the clock, so that the next attempt on key
// has to raise. Each time, they are ahead of all that any test has made before: a client takes the counter of another
// key for a hint if the two share a slot of its hints, and with a hint that is larger all nodes would grant the same.
func (c cluster) diverge(t testing.TB, key string) {
	t.Helper()
	for _, s := range c {
		ahead := time.Minute + time.Duration(diverged.Add(1))*time.Second
		s.Cmd(t, "SET", script.KeysOf("lock:", key).Fence(), time.Now().Add(ahead).UnixMicro())
	}
}

// diverged is how many counters have been put ahead.
var diverged atomic.Int64

// handle gives all proxies one handler.
func (r *rig) handle(f func(fault.Request) fault.Action) {
	for _, p := range r.proxies {
		p.Handle(f)
	}
}

func (r *rig) release() {
	for _, p := range r.proxies {
		p.Release()
	}
}

// count counts the commands that match, over all nodes.
func (r *rig) count(pred func(args []string) bool) (n int) {
	for _, p := range r.proxies {
		n += p.Count(func(q fault.Request) bool { return pred(q.Args) })
	}
	return n
}

// gate counts requests over several proxies.
type gate struct {
	mu sync.Mutex
	n  int
}

func (g *gate) next() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
	return g.n
}

func (g *gate) seen() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

// voteOf returns what the named node said, by err.
func voteOf(t testing.TB, err error, name string) redlock.Vote {
	t.Helper()
	q := quorumError(t, err)
	i := slices.IndexFunc(q.Votes, func(v redlock.Vote) bool { return v.Node == name })
	if i < 0 {
		t.Fatalf("%v has no vote of %s", err, name)
	}
	return q.Votes[i]
}

func quorumError(t testing.TB, err error) *redlock.QuorumError {
	t.Helper()
	var q *redlock.QuorumError
	ok := errors.As(err, &q)
	if !ok {
		t.Fatalf("error %v is no *QuorumError", err)
	}
	return q
}

// wantErr checks that err matches all of want and none of the other sentinels.
func wantErr(t testing.TB, err error, want ...error) {
	t.Helper()
	for _, e := range []error{
		locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrNoQuorum, locker.ErrUnavailable,
		locker.ErrForeignKey, locker.ErrClosed, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, e) != slices.Contains(want, e) {
			t.Errorf("error %q matches %q: %v, want %v", err, e, errors.Is(err, e), slices.Contains(want, e))
		}
	}
}

// wantText checks that err says all of texts.
func wantText(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}
